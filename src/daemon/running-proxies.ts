// Knows which other proxies run on this node: ours by a socket that each of them listens on, kube-proxy by its metrics port.
//
// Proxies of a DaemonSet see neither each other's processes nor each other's files, but they share the network namespace of the node, and
// with it abstract Unix sockets and loopback. A proxy that starts connects to the sockets of all modes and stays connected: both sides
// notice at once when the other one ends.

import { get } from 'node:http'
import { createServer, type Server, Socket } from 'node:net'
import type { Mode } from '../backend/backend.ts'
import { modes } from '../backend/modes.ts'
import { describeError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import { type Clock, sleep } from '../lib/time.ts'
import { abstractPath, connectAbstract, isNameTaken } from '../sys/abstract-socket.ts'
import { platform } from '../sys/platform/platform.ts'

export interface RunningProxiesOptions {
  readonly mode: Mode
  readonly log: Logger
  readonly clock: Clock
  /** Ports of loopback on which kube-proxy may serve its mode. */
  readonly metricsPorts: readonly number[]
}

/** Other proxies that may introduce themselves at a time. Any process of the node may connect. */
const maxConnections = 8
const maxIntroductionBytes = 64
const askLimitMs = 1_000

const socketName = (mode: Mode): string => `sluice-proxy-${mode}`

export class RunningProxies {
  readonly #options: RunningProxiesOptions
  readonly #sockets = new Set<Socket>()
  /** Modes of the proxies that ran when this one started, by the connection to each. */
  readonly #running = new Map<Socket, Mode>()
  readonly #waiting = new Set<() => void>()
  #server: Server | undefined
  #isClosed = false

  constructor(options: RunningProxiesOptions) {
    this.#options = options
  }

  /** Finds the proxies that run already, and begins to listen for later ones. */
  start(): void {
    if (!platform.hasAbstractSockets) return
    for (const { name } of modes) this.#connect(name)
    this.#listen()
  }

  /** The modes of the other proxies that run on this node. An answer with our own mode may come from ourselves. */
  async listModes(): Promise<ReadonlySet<Mode>> {
    const answers = await Promise.all(this.#options.metricsPorts.map(askMode))
    const served = modes.map(({ name }) => name).filter((name) => name !== this.#options.mode && answers.includes(name))
    return new Set([...this.#running.values(), ...served])
  }

  /** Resolves when another proxy ends, at the latest after `limitMs`. Rejects when the signal aborts. */
  async waitForEnd(limitMs: number, signal: AbortSignal): Promise<void> {
    const ended = new AbortController()
    const wake = () => ended.abort()
    this.#waiting.add(wake)
    try {
      await sleep(this.#options.clock, limitMs, AbortSignal.any([signal, ended.signal]))
    } catch (error) {
      if (signal.aborted) throw error
    } finally {
      this.#waiting.delete(wake)
    }
  }

  close(): void {
    this.#isClosed = true
    this.#server?.close()
    for (const socket of this.#sockets) socket.destroy()
  }

  #listen(): void {
    const server = createServer((socket) => this.#accept(socket))
    server.maxConnections = maxConnections
    server.on('error', (error) => {
      // A proxy of the same mode has the name. It is asked for again when that proxy ends.
      if (!isNameTaken(error)) {
        this.#options.log.warn('Cannot listen for other proxies on this node', { error: describeError(error) })
      }
    })
    server.listen(abstractPath(socketName(this.#options.mode)))
    // Other proxies must not keep this process alive.
    server.unref()
    this.#server = server
  }

  #connect(mode: Mode): void {
    const connection = connectAbstract(socketName(mode))
    if (connection === undefined) return
    const socket = new Socket({ fd: connection.fd, readable: true, writable: true })
    this.#keep(socket)
    // Any user could listen and so keep the rules of a proxy that ended, so only root and our own user are believed.
    if (connection.uid !== 0 && connection.uid !== process.getuid?.()) {
      socket.destroy()
      return
    }
    this.#running.set(socket, mode)
    this.#options.log.warn('Another proxy runs on this node; both serve until it ends', { mode, pid: connection.pid })
    socket.write(`${this.#options.mode} ${process.pid}\n`)
    socket.resume()
    socket.once('close', () => this.#end(socket, mode))
  }

  #end(socket: Socket, mode: Mode): void {
    this.#running.delete(socket)
    if (this.#isClosed) return
    this.#options.log.info('The other proxy on this node has ended', { mode })
    for (const wake of this.#waiting) wake()
    if (mode === this.#options.mode) this.#listen()
  }

  /** A proxy that started later introduces itself with its mode and pid. */
  #accept(socket: Socket): void {
    this.#keep(socket)
    let text = ''
    socket.on('data', (chunk) => {
      if (text.includes('\n')) return
      text += chunk.toString('latin1')
      const [, mode, pid] = /^([a-z]+) (\d+)\n/.exec(text) ?? []
      if (mode === undefined) {
        if (text.length > maxIntroductionBytes) socket.destroy()
        return
      }
      const { log } = this.#options
      log.warn('Another proxy has started on this node; both serve until one ends', { mode, pid: Number(pid) })
      socket.once('close', () => {
        if (!this.#isClosed) log.info('The other proxy on this node has ended', { mode, pid: Number(pid) })
      })
    })
  }

  #keep(socket: Socket): void {
    this.#sockets.add(socket)
    socket.unref()
    socket.on('error', () => {})
    socket.once('close', () => this.#sockets.delete(socket))
  }
}

/** Asks a metrics port for the mode of its proxy, as kube-proxy and we serve it. '' if no proxy answers. */
function askMode(port: number): Promise<string> {
  return new Promise((resolve) => {
    const request = get({ host: '127.0.0.1', port, path: '/proxyMode', timeout: askLimitMs }, (response) => {
      let text = ''
      response.on('data', (chunk) => {
        text += chunk
        if (text.length > maxIntroductionBytes) response.destroy()
      })
      response.on('close', () => resolve(response.statusCode === 200 ? text.trim() : ''))
    })
    request.on('timeout', () => request.destroy())
    request.on('error', () => resolve(''))
  })
}
