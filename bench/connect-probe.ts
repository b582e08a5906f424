// Client and server of bench/nftables.ts. They use blocking calls, since they must cost less than what they measure.
//
//   connect-probe server PORT
//   connect-probe latency COUNT PATH…            prints the µs that a service adds to the handshake; a path is NAMESPACE,SERVICE,PORT,DIRECT,PORT
//   connect-probe until IP PORT ANSWER LIMIT SINCE    prints the ms from SINCE (Unix ms) to the first answer of that address; -1 if too late
//   connect-probe changes IP PORT API COUNT PAUSE LIMIT    requests one new endpoint after the other for at most LIMIT ms; prints the ms
//                                                          until the first answer of each
//   connect-probe livez PORT LIMIT               asks for /livez until SIGTERM; prints the worst ms; LIMIT if there is no answer

import {
  AF_INET,
  address,
  close,
  connect,
  ints,
  libc,
  MSG_NOSIGNAL,
  recv,
  SO_LINGER,
  SO_RCVTIMEO,
  SO_SNDTIMEO,
  SOCK_STREAM,
  SOL_SOCKET,
  send,
  serve,
  setsockopt,
  socket,
} from '../test/kernel/blocking-sockets.ts'
import { probeAddress } from './api-objects.ts'

const open = libc.func('int open(const char *path, int flags)')
const setns = libc.func('int setns(int fd, int type)')

/** 50 ms: a connection without an answer is soon tried again. */
const timeout = ints(0, 0, 50_000, 0)
const answer = Buffer.alloc(4)

/** Returns the address that answered; '' if none did. */
function readAnswer(to: Buffer): string {
  const fd = socket(AF_INET, SOCK_STREAM, 0)
  setsockopt(fd, SOL_SOCKET, SO_LINGER, ints(1, 0), 8)
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, timeout, 16)
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, timeout, 16)
  const source = connect(fd, to, 16) === 0 && recv(fd, answer, 4, 0) === 4 ? answer.join('.') : ''
  close(fd)
  return source
}

/** Sends one request and does not wait for the answer. */
function requestChange(api: Buffer, turn: number): number {
  const fd = socket(AF_INET, SOCK_STREAM, 0)
  connect(fd, api, 16)
  const text = Buffer.from(`GET /probe?turn=${turn} HTTP/1.0\r\n\r\n`)
  send(fd, text, text.length, MSG_NOSIGNAL)
  return fd
}

const pause = new Int32Array(new SharedArrayBuffer(4))
const sleep = (ms: number): void => void Atomics.wait(pause, 0, 0, ms)

interface Path {
  readonly namespace: number
  readonly service: Buffer
  readonly direct: Buffer
  readonly times: { readonly service: number[]; readonly direct: number[] }
}

/**
 * Measures `connect`: over loopback the kernel does the whole handshake inside it, so that nothing waits for another process. All paths,
 * and on each the service and the direct way, are measured by turns, so that other load of the machine affects all alike.
 */
function latency(count: number, words: readonly string[]): readonly object[] {
  const paths = words.map((word): Path => {
    const [name = '', ip = '', port = '', direct = '', directPort = ''] = word.split(',')
    const namespace = open(`/run/netns/${name}`, 0)
    const to = { service: address(ip, Number(port)), direct: address(direct, Number(directPort)) }
    return { namespace, ...to, times: { service: [], direct: [] } }
  })
  const warmUps = 500
  for (let i = -warmUps; i < count; i += block) {
    for (const { namespace, service, direct, times } of paths) {
      if (setns(namespace, CLONE_NEWNET) < 0) throw new Error('cannot enter the namespace')
      for (let n = 0; n < block; n++) {
        const both = [handshake(service), handshake(direct)] as const
        if (i < 0) continue
        times.service.push(both[0])
        times.direct.push(both[1])
      }
      // The server accepts them from its queue meanwhile.
      sleep(2)
    }
  }
  return paths.map(({ times }) => {
    const added = bootstrap(times.service, times.direct)
    return { direct: median(times.direct), service: median(times.service), added }
  })
}

const block = 25

function handshake(to: Buffer): number {
  const fd = socket(AF_INET, SOCK_STREAM, 0)
  setsockopt(fd, SOL_SOCKET, SO_LINGER, ints(1, 0), 8)
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, timeout, 16)
  const began = process.hrtime.bigint()
  connect(fd, to, 16)
  const took = Number(process.hrtime.bigint() - began) / 1000
  close(fd)
  return took
}

const median = (list: readonly number[]): number => list.toSorted((a, b) => a - b)[list.length >> 1] as number

/** Returns the difference of the medians for 300 draws of blocks; blocks, since neighbouring samples share their noise. */
function bootstrap(service: readonly number[], direct: readonly number[]): readonly number[] {
  const blocks = Math.floor(service.length / block)
  return Array.from({ length: 300 }, () => {
    const drawn: [number[], number[]] = [[], []]
    for (let i = 0; i < blocks; i++) {
      const from = Math.floor(Math.random() * blocks) * block
      for (let n = from; n < from + block; n++) {
        drawn[0].push(service[n] as number)
        drawn[1].push(direct[n] as number)
      }
    }
    return median(drawn[0]) - median(drawn[1])
  })
}

function until(to: Buffer, expected: string, limit: number, since: number): number {
  const end = Date.now() + limit
  while (Date.now() < end) {
    if (readAnswer(to) === expected) return performance.timeOrigin + performance.now() - since
    // The measured proxy needs the processor.
    sleep(10)
  }
  return -1
}

interface Changes {
  readonly count: number
  readonly pauseMs: number
  readonly limitMs: number
}

function changes(to: Buffer, api: Buffer, { count, pauseMs, limitMs }: Changes): readonly number[] {
  const found: number[] = []
  const end = performance.now() + limitMs
  for (let turn = 1; turn <= count && performance.now() < end; turn++) {
    const began = performance.now()
    const fd = requestChange(api, turn)
    const wanted = probeAddress(turn)
    while (readAnswer(to) !== wanted) {
      if (performance.now() - began > 60_000) return found
    }
    found.push(performance.now() - began)
    close(fd)
    sleep(pauseMs)
  }
  return found
}

async function livez(to: Buffer, limitMs: number): Promise<number> {
  let [isStopped, worst] = [false, 0]
  process.once('SIGTERM', () => {
    isStopped = true
  })
  // Also ends when the benchmark has failed.
  const parent = process.ppid
  while (!isStopped && process.ppid === parent) {
    const began = performance.now()
    const isAnswered = askLivez(to, limitMs)
    const tookMs = isAnswered ? performance.now() - began : limitMs
    await new Promise((resolve) => setTimeout(resolve, 5))
    // The signal interrupts a request that waits for its answer.
    if (isStopped && !isAnswered) break
    worst = Math.max(worst, tookMs)
  }
  return worst
}

function askLivez(to: Buffer, limitMs: number): boolean {
  const fd = socket(AF_INET, SOCK_STREAM, 0)
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, ints(limitMs / 1000, 0, 0, 0), 16)
  const text = Buffer.from('GET /livez HTTP/1.0\r\n\r\n')
  const isAnswered =
    connect(fd, to, 16) === 0 && send(fd, text, text.length, MSG_NOSIGNAL) > 0 && recv(fd, answer, 4, 0) > 0
  close(fd)
  return isAnswered
}

const CLONE_NEWNET = 0x40000000
const [role, ip = '', port = '', third = '', fourth = '0', fifth = '0', sixth = '0'] = process.argv.slice(2)
const target = role === 'server' || role === 'latency' || role === 'livez' ? Buffer.alloc(0) : address(ip, Number(port))
const print = (value: unknown) => process.stdout.write(`${JSON.stringify(value)}\n`)
if (role === 'server') serve(Number(ip))
else if (role === 'latency') print(latency(Number(ip), process.argv.slice(4)))
else if (role === 'livez') print(await livez(address('127.0.0.1', Number(ip)), Number(port)))
else if (role === 'until') print(until(target, third, Number(fourth), Number(fifth)))
else {
  const how = { count: Number(fourth), pauseMs: Number(fifth), limitMs: Number(sixth) }
  print(changes(target, address('127.0.0.1', Number(third)), how))
}
