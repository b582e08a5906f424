// The only file that calls native code: the few system calls that Node has no API for.
//
// 1. The library is loaded at the first call, so that commands which never touch the kernel do not pay for it.
// 2. Every function returns a result, or minus the error number. No error of the kernel throws.
// 3. A wrong length would corrupt memory. Lengths are checked against the buffers here and nowhere else.

import { loadKoffi } from './native-addon.ts'

interface Native {
  (...args: unknown[]): number
  /** Runs on a thread of Node's pool and calls `done` on the main thread. */
  async(...args: [...unknown[], done: (error: Error | null, returned: number) => void]): void
}

interface PollHandle {
  close(): void
  unref(): void
}

interface Library {
  readonly socket: Native
  readonly bind: Native
  readonly connect: Native
  readonly getsockname: Native
  readonly sendto: Native
  readonly recv: Native
  readonly recvmmsg: Native
  readonly setsockopt: Native
  readonly getsockopt: Native
  readonly attachFilter: Native
  readonly open: Native
  readonly close: Native
  readonly setns: Native
  readonly memfd: Native
  readonly spawn: Native
  readonly actions: { readonly init: Native; readonly dup: Native; readonly destroy: Native }
  readonly attributes: {
    readonly init: Native
    readonly defaults: Native
    readonly flags: Native
    readonly destroy: Native
  }
  readonly waitpid: Native
  readonly getrusage: Native
  readonly syscall: Native
  readonly madvise: Native
  /** Undefined where the C library is not glibc. */
  readonly mallocTrim: Native | undefined
  readonly errno: () => number
  readonly address: (bytes: ArrayBufferView) => bigint
  readonly poll: (fd: number, options: { readable: boolean }, run: () => void) => PollHandle
}

/** What this file uses of koffi. */
export interface Koffi {
  load(path: null): { func(definition: string): Native }
  struct(name: string, members: Readonly<Record<string, string>>): unknown
  errno(): number
  address(bytes: ArrayBufferView): bigint
  readonly node: { poll: Library['poll'] }
}

export const AF_NETLINK = 16
export const SOCK_RAW = 3
export const SOCK_CLOEXEC = 0o2000000
export const MSG_DONTWAIT = 0x40
/** Makes `recv` return the length of the whole datagram, even if the buffer is too short for it. */
export const MSG_TRUNC = 0x20
export const SOL_SOCKET = 1
export const SO_SNDBUF = 7
export const SO_RCVBUF = 8
export const SO_SNDBUFFORCE = 32
export const SO_RCVBUFFORCE = 33
const SO_ATTACH_FILTER = 26
const instructionBytes = 8
/** The size of struct sock_fprog where pointers have 8 bytes. */
const fprogBytes = 16
export const CLONE_NEWNET = 0x40000000
const MFD_CLOEXEC = 1
const POSIX_SPAWN_SETSIGDEF = 4
const WNOHANG = 1
const SYS_pidfd_open = 434
const MADV_DONTNEED = 4

let loaded: Library | undefined

function library(): Library {
  loaded ??= bindLibrary(loadKoffi() as Koffi)
  return loaded
}

/** Uses another library instead of the system's; with undefined, the next call loads the system's. For code that runs without a kernel. */
export function replaceLibrary(koffi: Koffi | undefined): void {
  loaded = koffi === undefined ? undefined : bindLibrary(koffi)
}

function bindLibrary(koffi: Koffi): Library {
  const libc = koffi.load(null)
  koffi.struct('sock_fprog', { len: 'uint16_t', filter: 'void *' })
  return {
    socket: libc.func('int socket(int domain, int type, int protocol)'),
    bind: libc.func('int bind(int fd, const void *address, uint32_t length)'),
    connect: libc.func('int connect(int fd, const void *address, uint32_t length)'),
    getsockname: libc.func('int getsockname(int fd, void *address, void *length)'),
    sendto: libc.func(
      'intptr_t sendto(int fd, const void *bytes, size_t length, int flags, const void *to, uint32_t toLength)',
    ),
    recvmmsg: libc.func('int recvmmsg(int fd, void *messages, uint32_t count, int flags, void *timeout)'),
    recv: libc.func('intptr_t recv(int fd, void *bytes, size_t length, int flags)'),
    setsockopt: libc.func('int setsockopt(int fd, int level, int option, const void *value, uint32_t length)'),
    getsockopt: libc.func('int getsockopt(int fd, int level, int option, void *value, void *length)'),
    attachFilter: libc.func('int setsockopt(int fd, int level, int option, const sock_fprog *value, uint32_t length)'),
    open: libc.func('int open(const char *path, int flags)'),
    close: libc.func('int close(int fd)'),
    setns: libc.func('int setns(int fd, int type)'),
    memfd: libc.func('int memfd_create(const char *name, unsigned int flags)'),
    spawn: libc.func(
      'int posix_spawn(void *pid, const char *path, const void *actions, const void *attributes, const char **args, const char **env)',
    ),
    actions: {
      init: libc.func('int posix_spawn_file_actions_init(void *actions)'),
      dup: libc.func('int posix_spawn_file_actions_adddup2(void *actions, int fd, int as)'),
      destroy: libc.func('int posix_spawn_file_actions_destroy(void *actions)'),
    },
    attributes: {
      init: libc.func('int posix_spawnattr_init(void *attributes)'),
      defaults: libc.func('int posix_spawnattr_setsigdefault(void *attributes, const void *signals)'),
      flags: libc.func('int posix_spawnattr_setflags(void *attributes, short flags)'),
      destroy: libc.func('int posix_spawnattr_destroy(void *attributes)'),
    },
    waitpid: libc.func('int waitpid(int pid, void *status, int options)'),
    getrusage: libc.func('int getrusage(int who, void *usage)'),
    syscall: libc.func('intptr_t syscall(intptr_t number, intptr_t first, intptr_t second)'),
    madvise: libc.func('int madvise(uintptr_t address, size_t length, int advice)'),
    mallocTrim: findOptional(libc, 'int malloc_trim(size_t pad)'),
    errno: () => koffi.errno(),
    address: (bytes) => koffi.address(bytes),
    poll: koffi.node.poll,
  }
}

function findOptional(libc: ReturnType<Koffi['load']>, definition: string): Native | undefined {
  try {
    return libc.func(definition)
  } catch {
    return undefined
  }
}

export function socket(domain: number, type: number, protocol: number): number {
  const native = library()
  return result(native, native.socket(domain, type, protocol))
}

export function bind(fd: number, address: Uint8Array): number {
  const native = library()
  return result(native, native.bind(fd, address, address.length))
}

/** A socket that blocks may wait here. */
export function connect(fd: number, address: Uint8Array): number {
  const native = library()
  return result(native, native.connect(fd, address, address.length))
}

/** Fills `address` and returns its length. */
export function getsockname(fd: number, address: Uint8Array): number {
  const native = library()
  const length = Uint32Array.of(address.length)
  const returned = result(native, native.getsockname(fd, address, length))
  return returned < 0 ? returned : Math.min(length[0] as number, address.length)
}

/** Sends the first `length` bytes to the kernel, to which a netlink socket without an address is connected. */
export function send(fd: number, bytes: Uint8Array, length: number): number {
  if (length > bytes.length) throw sendTooLong(length, bytes)
  const native = library()
  return result(native, native.sendto(fd, bytes, length, 0, null, 0))
}

/** Sends on another thread, for datagrams that take the kernel long. The bytes and the fd must stay valid until it resolves. */
export function sendInBackground(fd: number, bytes: Uint8Array, length: number): Promise<number> {
  if (length > bytes.length) throw sendTooLong(length, bytes)
  const native = library()
  return new Promise((resolve, reject) => {
    native.sendto.async(fd, bytes, length, 0, null, 0, (error, returned) => {
      if (error === null) resolve(result(native, returned))
      else reject(error)
    })
  })
}

const sendTooLong = (length: number, bytes: Uint8Array): RangeError =>
  new RangeError(`cannot send ${length} bytes from a buffer of ${bytes.length}`)

/** Returns the number of received bytes; with MSG_TRUNC it may exceed the length of the buffer. */
export function recv(fd: number, buffer: Uint8Array, flags: number): number {
  const native = library()
  return result(native, native.recv(fd, buffer, buffer.length, flags))
}

/** The sizes of struct mmsghdr and struct iovec where pointers have 8 bytes; where the former has the iovec, its count and the length. */
const mmsghdr = { bytes: 64, vectorAt: 16, countAt: 24, lengthAt: 56 } as const
const iovecBytes = 16

/** Buffers for several datagrams, which one call receives. The kernel gets their addresses: they must not be replaced. */
export class DatagramBatch {
  readonly bytes: Buffer
  readonly slotBytes: number
  readonly #count: number
  readonly #headers: Buffer
  readonly #vectors: Buffer
  readonly #lengths: Uint32Array

  constructor(count: number, slotBytes: number) {
    const { address } = library()
    this.bytes = Buffer.alloc(count * slotBytes)
    this.slotBytes = slotBytes
    this.#count = count
    this.#headers = Buffer.from(new ArrayBuffer(count * mmsghdr.bytes))
    this.#vectors = Buffer.from(new ArrayBuffer(count * iovecBytes))
    this.#lengths = new Uint32Array(this.#headers.buffer)
    const [slots, headers] = [new BigUint64Array(this.#vectors.buffer), new BigUint64Array(this.#headers.buffer)]
    const [bytesAt, vectorsAt] = [address(this.bytes), address(this.#vectors)]
    for (let i = 0; i < count; i++) {
      slots[2 * i] = bytesAt + BigInt(i * slotBytes)
      slots[2 * i + 1] = BigInt(slotBytes)
      headers[(i * mmsghdr.bytes + mmsghdr.vectorAt) / 8] = vectorsAt + BigInt(i * iovecBytes)
      headers[(i * mmsghdr.bytes + mmsghdr.countAt) / 8] = 1n
    }
  }

  /** Returns how many datagrams were received. An error after the first one is returned by the next call. */
  receive(fd: number, flags: number): number {
    const native = library()
    return result(native, native.recvmmsg(fd, this.#headers, this.#count, flags, null))
  }

  /** The length of a received datagram; with MSG_TRUNC it may exceed `slotBytes`. */
  lengthOf(i: number): number {
    return this.#lengths[(i * mmsghdr.bytes + mmsghdr.lengthAt) / 4] as number
  }
}

export function setsockopt(fd: number, level: number, option: number, value: number): number {
  const native = library()
  return result(native, native.setsockopt(fd, level, option, Int32Array.of(value), 4))
}

/** Reads an option that is a structure. The kernel reads `value` and then fills it. Returns the length of the answer. */
export function getsockoptBytes(fd: number, level: number, option: number, value: Uint8Array): number {
  const native = library()
  const length = Uint32Array.of(value.length)
  const returned = result(native, native.getsockopt(fd, level, option, value, length))
  return returned < 0 ? returned : Math.min(length[0] as number, value.length)
}

/** Attaches a program of classic BPF, 8 bytes per instruction: datagrams for which the program returns 0 are not received. */
export function attachFilter(fd: number, program: Uint8Array): number {
  const native = library()
  const value = { len: program.length / instructionBytes, filter: program }
  return result(native, native.attachFilter(fd, SOL_SOCKET, SO_ATTACH_FILTER, value, fprogBytes))
}

export function open(path: string, flags: number): number {
  const native = library()
  return result(native, native.open(path, flags))
}

export function close(fd: number): number {
  const native = library()
  return result(native, native.close(fd))
}

/** Moves the calling thread, and no other, to the namespace that `fd` refers to. */
export function setns(fd: number, type: number): number {
  const native = library()
  return result(native, native.setns(fd, type))
}

/** Makes a file that exists only in memory until it is closed. Child processes do not inherit it. */
export function memoryFile(name: string): number {
  const native = library()
  return result(native, native.memfd(name, MFD_CLOEXEC))
}

/** At least as large as these structures in every C library. */
const actionsBytes = 256
const attributesBytes = 1024
const sigsetBytes = 128

/**
 * Starts a program with the given descriptors as its stdin, stdout and stderr. The first argument is its name. Returns its process id.
 * Node forks, which copies the memory map of this process; posix_spawn does not, and costs a tenth.
 */
export function spawn(
  path: string,
  args: readonly string[],
  env: Readonly<Record<string, string | undefined>>,
  files: readonly [number, number, number],
): number {
  const { spawn: start, actions, attributes } = library()
  const [fileActions, settings] = [Buffer.alloc(actionsBytes), Buffer.alloc(attributesBytes)]
  const [signals, pid] = [Buffer.alloc(sigsetBytes), Int32Array.of(0)]
  // Node ignores SIGPIPE, and the program would inherit that.
  signals[1] = 1 << 4
  actions.init(fileActions)
  attributes.init(settings)
  try {
    attributes.defaults(settings, signals)
    attributes.flags(settings, POSIX_SPAWN_SETSIGDEF)
    for (const [as, fd] of files.entries()) actions.dup(fileActions, fd, as)
    const variables = Object.entries(env).flatMap(([name, value]) => (value === undefined ? [] : [`${name}=${value}`]))
    const failed = start(pid, path, fileActions, settings, [...args, null], [...variables, null])
    return failed === 0 ? (pid[0] as number) : -failed
  } finally {
    actions.destroy(fileActions)
    attributes.destroy(settings)
  }
}

/** Returns a descriptor that becomes readable when the process has ended (Linux 5.3). */
export function pidfdOpen(pid: number): number {
  const native = library()
  return result(native, Number(native.syscall(SYS_pidfd_open, pid, 0)))
}

/** Returns the wait status of a child that has ended, and releases the child; undefined if it still runs. */
export function reap(pid: number): number | undefined {
  const native = library()
  const status = Int32Array.of(0)
  const returned = result(native, native.waitpid(pid, status, WNOHANG))
  if (returned === 0) return undefined
  return returned < 0 ? returned : (status[0] as number)
}

/**
 * Unmaps the pages from `start` to `end`, which the next access maps again. Pages that this process has changed lose the change, so the
 * range must be a mapping of a file without such pages.
 */
export function unmapFilePages(start: bigint, end: bigint): number {
  const native = library()
  return result(native, native.madvise(start, end - start, MADV_DONTNEED))
}

/** Returns memory that malloc holds and nobody uses to the kernel, if the C library can. */
export function trimMalloc(): void {
  library().mallocTrim?.(0)
}

const RUSAGE_CHILDREN = -1
/** struct rusage begins with the times in user and in kernel mode, each as seconds and microseconds, and has 144 bytes. */
const usage = new BigInt64Array(18)

/** The CPU time of all children that have ended, and of their children, in microseconds. */
export function readChildrenTime(): number {
  const native = library()
  if (native.getrusage(RUSAGE_CHILDREN, usage) !== 0) return 0
  const [userSeconds = 0n, userMicros = 0n, systemSeconds = 0n, systemMicros = 0n] = usage
  return Number((userSeconds + systemSeconds) * 1_000_000n + userMicros + systemMicros)
}

export interface Readiness {
  close(): void
}

/** Keeps the handles reachable: a handle that is garbage collected stops reporting, without an error (koffi 3.3). */
const watched = new Set<PollHandle>()

/** From Node 26 on, promises that koffi 3.3 resolves in such a callback wait until something else happens: an immediate, for example. */
const promisesWait = Number.parseInt(process.versions.node, 10) >= 26
const doNothing = () => {}

/** Calls `run` whenever the fd is readable, until closed. Must be closed before the fd. Keeps the process alive only if `keepsAlive`. */
export function watchReadable(fd: number, run: () => void, keepsAlive = false): Readiness {
  const runAndContinue = () => {
    setImmediate(doNothing)
    run()
  }
  const handle = library().poll(fd, { readable: true }, promisesWait ? runAndContinue : run)
  if (!keepsAlive) handle.unref()
  watched.add(handle)
  return {
    close() {
      if (watched.delete(handle)) handle.close()
    },
  }
}

function result(native: Library, returned: number): number {
  return returned < 0 ? -native.errno() : returned
}
