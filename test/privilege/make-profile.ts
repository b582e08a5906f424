// Makes the seccomp profile of a mode from the system calls that were recorded, and from those that other versions of Node, of the C
// library and of the kernel, and other architectures, use in their place. Pure.

import type { SeccompProfile } from '../../packaging/privileges.ts'

const words = (text: string): readonly string[] => text.trim().split(/\s+/)

/** What Node, libuv, V8 and glibc may call, though a short run does not show it. */
const runtime = words(`
  accept accept4 access brk clock_getres clock_gettime clock_nanosleep close close_range connect dup dup2 dup3 epoll_create
  epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd2 exit exit_group faccessat faccessat2 fadvise64 fcntl fdatasync
  fstat fstatfs fsync ftruncate futex get_robust_list getcpu getcwd getdents64 getegid geteuid getgid getpeername getpid getppid
  getpriority getrandom getrlimit getrusage getsockname getsockopt gettid gettimeofday getuid ioctl kill listen lseek lstat madvise
  membarrier memfd_create mincore mkdir mkdirat mmap mprotect mremap munmap nanosleep newfstatat open openat pipe pipe2 pkey_alloc
  pkey_free pkey_mprotect poll ppoll prctl pread64 preadv prlimit64 pselect6 pwrite64 pwritev read readlink readlinkat readv recvfrom
  recvmmsg recvmsg restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait
  sched_getaffinity sched_getparam sched_getscheduler sched_yield select sendmmsg sendmsg sendto set_robust_list set_tid_address
  setsockopt shutdown sigaltstack socketpair stat statfs statx sysinfo tgkill time umask uname unlink unlinkat write writev`)

/** The admin socket and the files of the runtime folder. */
const files = words('bind chmod fchmod fchmodat fchmodat2 rename renameat renameat2 rmdir')

/** The configuration files are watched. */
const watches = words('inotify_init1 inotify_add_watch inotify_rm_watch')

/** What starting programs takes, besides what the programs call themselves. */
const children = words('pidfd_open vfork wait4 waitid flock')

/** The runtime of containers executes the program after it has loaded the profile. */
const start = words('execve arch_prctl capget')

const CLONE_THREAD = 0x10000
/** All flags of clone that make namespaces. */
const CLONE_NAMESPACES = 0x7e020000
const ENOSYS = 38

const AF_UNIX = 1
const AF_INET = 2
const AF_INET6 = 10
const AF_NETLINK = 16

const sorted = (names: Iterable<string>): readonly string[] => [...new Set(names)].sort()

export function makeProfile(recorded: Iterable<string>, startsPrograms: boolean): SeccompProfile {
  const plain = sorted(recorded).filter((name) => !/^(clone|clone3|socket|io_uring_.*)$/.test(name))
  const others = sorted([...runtime, ...files, ...watches, ...start, ...(startsPrograms ? children : [])])
  const mask = startsPrograms ? CLONE_NAMESPACES : CLONE_THREAD
  return {
    defaultAction: 'SCMP_ACT_ERRNO',
    defaultErrnoRet: 1,
    architectures: ['SCMP_ARCH_X86_64', 'SCMP_ARCH_AARCH64'],
    syscalls: [
      { names: plain, action: 'SCMP_ACT_ALLOW', comment: 'recorded by the tests' },
      {
        names: others.filter((name) => !plain.includes(name)),
        action: 'SCMP_ACT_ALLOW',
        comment: 'other versions of Node, the C library and the kernel; arm64; rare paths',
      },
      {
        names: ['clone'],
        action: 'SCMP_ACT_ALLOW',
        args: [{ index: 0, value: mask, valueTwo: startsPrograms ? 0 : CLONE_THREAD, op: 'SCMP_CMP_MASKED_EQ' }],
        comment: startsPrograms ? 'threads and programs, but no namespaces' : 'threads, but no processes',
      },
      {
        names: ['clone3'],
        action: 'SCMP_ACT_ERRNO',
        errnoRet: ENOSYS,
        comment: 'its flags cannot be filtered; the C library uses clone instead',
      },
      {
        names: ['io_uring_setup'],
        action: 'SCMP_ACT_ERRNO',
        errnoRet: ENOSYS,
        comment: 'libuv, which tries it in Node 24, uses epoll alone instead',
      },
      ...[AF_UNIX, AF_INET, AF_INET6, AF_NETLINK].map((family) => ({
        names: ['socket'],
        action: 'SCMP_ACT_ALLOW',
        args: [{ index: 0, value: family, op: 'SCMP_CMP_EQ' }],
      })),
    ],
  }
}

/** The names in the first group of a profile: what was recorded when it was made. */
export const recordedNames = (profile: SeccompProfile): readonly string[] => profile.syscalls[0]?.names ?? []

/** Names of the calls, and paths of the programs, in the output of `strace -f`, from the start of the second program on. */
export function readRecord(text: string): {
  readonly calls: ReadonlySet<string>
  readonly programs: readonly string[]
} {
  const calls = new Set<string>()
  const programs: string[] = []
  for (const line of text.split('\n')) {
    const name = /^(?:\d+ +)?(?:<\.\.\. )?([a-z_0-9]+)(?:\(| resumed)/.exec(line)?.[1]
    if (name === undefined) continue
    // A line without a result is continued by a line of its own.
    const program = /execve\("([^"]*)".*(?: = 0|<unfinished \.\.\.>)$/.exec(line)?.[1]
    if (program !== undefined) programs.push(program)
    if (programs.length > 1) calls.add(name)
  }
  return { calls, programs: programs.slice(1) }
}
