// Decides which share of the flows is followed, so that a flood costs a bounded time and memory. No I/O, and no clock.

/** New flows per second that are followed, at most. */
const maxPerSecond = 250
/** So many quiet seconds must pass before the share grows again. */
const calmSeconds = 3
const maxRate = 2 ** 12

export class FlowSampler {
  #rate = 1
  #count = 0
  #calm = 0

  /** One in so many flows is followed: a power of two. */
  get rate(): number {
    return this.#rate
  }

  /** Called for each new flow that is followed. Returns true if the rate has changed. */
  count(): boolean {
    if (++this.#count <= maxPerSecond || this.#rate === maxRate) return false
    return this.raise()
  }

  /** Follows half as many flows: there are too many, or notifications were lost. */
  raise(): boolean {
    this.#calm = 0
    this.#count = 0
    if (this.#rate === maxRate) return false
    this.#rate *= 2
    return true
  }

  /** Called every second. Returns true if the rate has changed. */
  tick(): boolean {
    // With half the rate there would be twice as many; the rest is a margin, so that the rate does not go up and down.
    const isCalm = this.#count * 2 < maxPerSecond * 0.8
    this.#count = 0
    this.#calm = isCalm ? this.#calm + 1 : 0
    if (this.#rate === 1 || this.#calm < calmSeconds) return false
    this.#calm = 0
    this.#rate /= 2
    return true
  }
}
