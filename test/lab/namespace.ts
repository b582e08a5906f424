// One network namespace. The main thread enters it to open sockets and leaves it before it waits for anything.

import { spawn, spawnSync } from 'node:child_process'
import { closeSync, openSync } from 'node:fs'
import { familyOf, parseIp } from '../../src/lib/ip.ts'
import * as libc from '../../src/sys/libc.ts'
import { Shell } from './shell.ts'

const AF_INET = 2
const AF_INET6 = 10
const SOCK_STREAM = 1
const SOCK_DGRAM = 2
const SOCK_NONBLOCK = 0o4000
const SO_REUSEADDR = 2
const IPPROTO_IPV6 = 41
const IPV6_RECVERR = 25
const IPV6_V6ONLY = 26

export interface Command {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

export class Namespace {
  readonly name: string
  /** File for `setns` and for programs that take a namespace file. */
  readonly path: string
  readonly #fd: number
  readonly #home: number
  #shell: Shell | undefined

  constructor(name: string) {
    this.name = name
    this.path = `/run/netns/${name}`
    this.#fd = openSync(this.path, 'r')
    this.#home = openSync('/proc/thread-self/ns/net', 'r')
  }

  /** Runs `work` with this thread inside. It must not wait: everything else on the thread would run inside too. */
  inside<T>(work: () => T): T {
    enter(this.#fd)
    try {
      return work()
    } finally {
      enter(this.#home)
    }
  }

  /** Returns an fd that is bound to the address inside the namespace, for `net` or `dgram`. */
  openSocket(protocol: 'tcp' | 'udp', ip: string, port: number): number {
    const six = familyOf(ip) === 6
    const type = (protocol === 'tcp' ? SOCK_STREAM : SOCK_DGRAM) | SOCK_NONBLOCK | libc.SOCK_CLOEXEC
    const fd = this.inside(() => libc.socket(six ? AF_INET6 : AF_INET, type, 0))
    if (fd < 0) throw new Error(`socket in ${this.name}: errno ${-fd}`)
    if (protocol === 'tcp') libc.setsockopt(fd, libc.SOL_SOCKET, SO_REUSEADDR, 1)
    if (six) {
      libc.setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1)
      // An ICMP error comes back so fast here that connect() still holds the socket; TCP would report it only at its
      // retransmission a second later. libuv sets the option for immediate errors only for IPv4.
      if (protocol === 'tcp') libc.setsockopt(fd, IPPROTO_IPV6, IPV6_RECVERR, 1)
    }
    const bound = libc.bind(fd, socketAddress(ip, port))
    if (bound < 0) {
      libc.close(fd)
      throw new Error(`bind ${ip} port ${port}/${protocol} in ${this.name}: errno ${-bound}`)
    }
    return fd
  }

  /** Runs a program inside, to its end. Programs without input run in one shell, since entering costs more than the program. */
  exec(program: string, args: readonly string[], options: { input?: string } = {}): Promise<Command> {
    if (options.input === undefined) {
      this.#shell ??= new Shell(this.name)
      return this.#shell.run(program, args)
    }
    return new Promise((resolve, reject) => {
      const child = spawn('ip', ['netns', 'exec', this.name, program, ...args], { stdio: ['pipe', 'pipe', 'pipe'] })
      const out: Buffer[] = []
      const err: Buffer[] = []
      child.stdout.on('data', (chunk: Buffer) => out.push(chunk))
      child.stderr.on('data', (chunk: Buffer) => err.push(chunk))
      child.on('error', reject)
      // A program that ends without reading its input is judged by its exit code, not by the broken pipe.
      child.stdin.on('error', () => undefined)
      child.on('close', (code) =>
        resolve({ code: code ?? -1, stdout: Buffer.concat(out).toString(), stderr: Buffer.concat(err).toString() }),
      )
      child.stdin.end(options.input ?? '')
    })
  }

  /** Runs `ip` commands in one process. Throws if one fails. */
  configure(commands: readonly string[]): void {
    runIp(['-n', this.name], commands)
  }

  close(): void {
    this.#shell?.close()
    closeSync(this.#fd)
    closeSync(this.#home)
  }
}

function enter(fd: number): void {
  const moved = libc.setns(fd, libc.CLONE_NEWNET)
  if (moved < 0) throw new Error(`setns: errno ${-moved}`)
}

/** Runs a batch of `ip` commands. */
export function runIp(options: readonly string[], commands: readonly string[]): void {
  if (commands.length === 0) return
  const input = `${commands.join('\n')}\n`
  const { status, stderr, error } = spawnSync('ip', [...options, '-batch', '-'], { input, encoding: 'utf8' })
  if (error !== undefined) throw error
  if (status !== 0) throw new Error(`ip ${options.join(' ')} -batch: ${stderr.trim()}\n${input}`)
}

/** Returns a struct sockaddr_in or sockaddr_in6. */
export function socketAddress(ip: string, port: number): Uint8Array {
  const bytes = parseIp(ip)
  if (bytes === undefined) throw new Error(`${ip} is not a valid address`)
  const six = bytes.length === 16
  const address = Buffer.alloc(six ? 28 : 16)
  const family = six ? AF_INET6 : AF_INET
  if (new Uint8Array(Uint16Array.of(1).buffer)[0] === 1) address.writeUInt16LE(family, 0)
  else address.writeUInt16BE(family, 0)
  address.writeUInt16BE(port, 2)
  address.set(bytes, six ? 8 : 4)
  return address
}
