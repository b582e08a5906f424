// Opens one connection after another to the service that nobody touches, and lists those that fail.

import { setTimeout as sleep } from 'node:timers/promises'
import { clusterIp, type NodeNetwork, podIps } from '../kernel/node-network.ts'

/** Elapsed time says nothing on a busy machine: a lost packet shows in the segments that were sent again. */
const limitMs = 20_000

export class Prober {
  made = 0
  readonly failed: string[] = []
  readonly #network: NodeNetwork
  #isRunning = true
  #fence: Promise<void> = Promise.resolve()
  #inFlight: Promise<unknown> = Promise.resolve()
  readonly #loop: Promise<void>

  constructor(network: NodeNetwork) {
    this.#network = network
    this.#loop = this.#run()
  }

  async #run(): Promise<void> {
    while (this.#isRunning) {
      await this.#passFence()
      const one = this.#network.dial(clusterIp, 80, limitMs)
      this.#inFlight = one
      const { answer, resent, socket } = await one
      socket.destroy()
      this.made++
      const isAnswered = (podIps as readonly string[]).includes(answer)
      if (!isAnswered || resent > 0) this.failed.push(`${new Date().toISOString()} ${answer}, ${resent} packets lost`)
      await sleep(5)
    }
  }

  /** Waits again if another fence was set while this one opened: its work does not wait for a connection that begins now. */
  async #passFence(): Promise<void> {
    let passed: Promise<void>
    do {
      passed = this.#fence
      await passed
    } while (passed !== this.#fence)
  }

  /** Runs `work` between two connections: a connection whose conntrack entry is flushed fails without any proxy. */
  async between(work: () => Promise<unknown>): Promise<void> {
    let open = () => {}
    this.#fence = new Promise((resolve) => (open = resolve))
    await this.#inFlight
    await work()
    open()
  }

  async stop(): Promise<void> {
    this.#isRunning = false
    await this.#loop
  }
}
