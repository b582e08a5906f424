// The client and server of the benchmark, with blocking calls: they must cost less than what they measure.
//
//   probe server PORT
//   probe latency COUNT SCENE…                 µs that a service adds to the handshake; a scene is NAMESPACE,SERVICE,PORT,DIRECT,PORT
//   probe until IP PORT ANSWER LIMIT SINCE    ms from SINCE (Unix ms) to the first answer from that address; -1: not in time
//   probe changes IP PORT API COUNT PAUSE LIMIT   for at most LIMIT ms asks the API server for one new endpoint after the other; ms to each one's first answer

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
import { probeAddress } from './objects.ts'

const open = libc.func('int open(const char *path, int flags)')
const setns = libc.func('int setns(int fd, int type)')

/** 50 ms: a connection that nobody answers is soon tried again. */
const patience = ints(0, 0, 50_000, 0)
const answer = Buffer.alloc(4)

/** Whose answer came; '' if none did. */
function ask(to: Buffer): string {
  const fd = socket(AF_INET, SOCK_STREAM, 0)
  setsockopt(fd, SOL_SOCKET, SO_LINGER, ints(1, 0), 8)
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, patience, 16)
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, patience, 16)
  const heard = connect(fd, to, 16) === 0 && recv(fd, answer, 4, 0) === 4 ? answer.join('.') : ''
  close(fd)
  return heard
}

/** One request, sent and not waited for. */
function write(api: Buffer, turn: number): number {
  const fd = socket(AF_INET, SOCK_STREAM, 0)
  connect(fd, api, 16)
  const text = Buffer.from(`GET /probe?turn=${turn} HTTP/1.0\r\n\r\n`)
  send(fd, text, text.length, MSG_NOSIGNAL)
  return fd
}

const pause = new Int32Array(new SharedArrayBuffer(4))
const rest = (ms: number): void => void Atomics.wait(pause, 0, 0, ms)

interface Scene {
  readonly namespace: number
  readonly service: Buffer
  readonly direct: Buffer
  readonly times: { readonly service: number[]; readonly direct: number[] }
}

/**
 * How long `connect` takes: over loopback the kernel does the whole handshake inside it, so nothing waits for another process.
 * All scenes, and in each the service and the way past it, are measured in turns: what the machine does meanwhile meets all alike.
 */
function latency(count: number, words: readonly string[]): readonly object[] {
  const scenes = words.map((word): Scene => {
    const [name = '', ip = '', port = '', direct = '', directPort = ''] = word.split(',')
    const namespace = open(`/run/netns/${name}`, 0)
    const to = { service: address(ip, Number(port)), direct: address(direct, Number(directPort)) }
    return { namespace, ...to, times: { service: [], direct: [] } }
  })
  const warmUps = 500
  for (let i = -warmUps; i < count; i += block) {
    for (const { namespace, service, direct, times } of scenes) {
      if (setns(namespace, CLONE_NEWNET) < 0) throw new Error('cannot enter the namespace')
      for (let n = 0; n < block; n++) {
        const both = [handshake(service), handshake(direct)] as const
        if (i < 0) continue
        times.service.push(both[0])
        times.direct.push(both[1])
      }
      // The server takes them from its queue.
      rest(2)
    }
  }
  return scenes.map(({ times }) => {
    const added = bootstrap(times.service, times.direct)
    return { direct: median(times.direct), service: median(times.service), added }
  })
}

const block = 25

function handshake(to: Buffer): number {
  const fd = socket(AF_INET, SOCK_STREAM, 0)
  setsockopt(fd, SOL_SOCKET, SO_LINGER, ints(1, 0), 8)
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, patience, 16)
  const began = process.hrtime.bigint()
  connect(fd, to, 16)
  const took = Number(process.hrtime.bigint() - began) / 1000
  close(fd)
  return took
}

const median = (list: readonly number[]): number => list.toSorted((a, b) => a - b)[list.length >> 1] as number

/** The difference of the medians for 300 draws of as many blocks as there are: neighbours share their noise. */
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
    if (ask(to) === expected) return performance.timeOrigin + performance.now() - since
    // What is measured must have the machine.
    rest(10)
  }
  return -1
}

function changes(to: Buffer, api: Buffer, count: number, pauseMs: number, limit: number): readonly number[] {
  const found: number[] = []
  const end = performance.now() + limit
  for (let turn = 1; turn <= count && performance.now() < end; turn++) {
    const began = performance.now()
    const fd = write(api, turn)
    const wanted = probeAddress(turn)
    while (ask(to) !== wanted) {
      if (performance.now() - began > 60_000) return found
    }
    found.push(performance.now() - began)
    close(fd)
    rest(pauseMs)
  }
  return found
}

const CLONE_NEWNET = 0x40000000
const [role, ip = '', port = '', third = '', fourth = '0', fifth = '0', sixth = '0'] = process.argv.slice(2)
const target = role === 'server' || role === 'latency' ? Buffer.alloc(0) : address(ip, Number(port))
const say = (value: unknown) => process.stdout.write(`${JSON.stringify(value)}\n`)
if (role === 'server') serve(Number(ip))
else if (role === 'latency') say(latency(Number(ip), process.argv.slice(4)))
else if (role === 'until') say(until(target, third, Number(fourth), Number(fifth)))
else say(changes(target, address('127.0.0.1', Number(third)), Number(fourth), Number(fifth), Number(sixth)))
