// Finds the programs of iptables and the families that work with them, and remembers both for some seconds: each question starts several
// programs, and a start asks it several times.

import type { Family } from '../../lib/ip.ts'
import { type Logger, silentLogger } from '../../lib/log.ts'
import { type Clock, systemClock } from '../../lib/time.ts'
import type { Mode } from '../backend.ts'
import { type Choice, choosePrograms, findUsableFamilies, takeChoice } from './flavour.ts'
import type { ProgramSet } from './programs.ts'

/** What was found is used again for this long. Later, kubelet may have made its chains. */
const rememberedMs = 5_000

export class ProgramFinder {
  readonly #mode: Mode
  readonly #clock: Clock
  #choice: Remembered<Choice> | undefined
  #families: Remembered<readonly Family[]> | undefined

  constructor(mode: Mode, clock: Clock = systemClock) {
    this.#mode = mode
    this.#clock = clock
  }

  /** As `findPrograms`. */
  async find(log: Logger): Promise<ProgramSet> {
    this.#choice = this.#remember(this.#choice, choosePrograms)
    return takeChoice(await this.#choice.found, log)
  }

  /** Families in which the nat table can be read. Throws if there is none, with the reasons. */
  families(): Promise<readonly Family[]> {
    this.#families = this.#remember(this.#families, async () => {
      return findUsableFamilies(this.#mode, await this.find(silentLogger))
    })
    return this.#families.found
  }

  #remember<T>(known: Remembered<T> | undefined, find: () => Promise<T>): Remembered<T> {
    const now = this.#clock.monotonic()
    if (known !== undefined && !known.hasFailed && now - known.atMs < rememberedMs) return known
    const remembered: Remembered<T> = { atMs: now, found: find(), hasFailed: false }
    remembered.found.catch(() => {
      remembered.hasFailed = true
    })
    return remembered
  }
}

interface Remembered<T> {
  readonly atMs: number
  readonly found: Promise<T>
  hasFailed: boolean
}
