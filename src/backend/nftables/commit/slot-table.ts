// The slots of one frontend as the kernel has them, in little memory: there is one table for every frontend. Pure.

/** More slots are kept as a list: their endpoints repeat, and a text would contain each of them as often. */
const fewSlots = 64

export class SlotTable {
  /** The endpoint in each slot, joined by commas. */
  #slots: string | readonly string[] = ''
  #size = 0
  /** How many slots the frontend chooses from. Later slots are retired: they wait to be swept. */
  count: number
  /** The number of the first slot. */
  readonly offset: number

  constructor(present: readonly string[], count: number, offset: number) {
    this.count = count
    this.offset = offset
    this.#keep(present)
  }

  /** How many slots the kernel has. */
  get size(): number {
    return this.#size
  }

  /** The endpoint in each slot that the kernel has. */
  get present(): readonly string[] {
    if (typeof this.#slots !== 'string') return this.#slots
    return this.#size === 0 ? [] : this.#slots.split(',')
  }

  /** Replaces the first slots. Later ones stay. */
  replaceFirst(slots: readonly string[]): void {
    this.#keep(this.#size <= slots.length ? slots : [...slots, ...this.present.slice(slots.length)])
  }

  /** Removes the retired slots. */
  removeRetired(): void {
    if (this.#size > this.count) this.#keep(this.present.slice(0, this.count))
  }

  #keep(slots: readonly string[]): void {
    this.#size = slots.length
    this.#slots = slots.length > fewSlots ? slots.slice() : slots.join(',')
  }
}
