// Keeps the sums of packets and bytes on disk, so that they outlive the proxy. The file lies beside the saved state, and is valid until the machine
// starts again.

import type { Figures } from '../../engine/flows/flow-totals.ts'
import type { SavedSums } from '../../engine/flows/traffic-sums.ts'
import { describeError } from '../../lib/errors.ts'
import type { Logger } from '../../lib/log.ts'
import { readPrivateFile, writePrivateFile } from '../../sys/private-files.ts'
import { readSysctl } from '../../sys/sysctl.ts'

const version = 1
/** A longer file is not used. */
const maxLength = 64 << 20

export class AccountingFile {
  readonly #path: string
  readonly #log: Logger
  /** Counters of flows end with the kernel that counts them. */
  readonly #boot = readSysctl('kernel/random/boot_id') ?? ''

  /** `state` is the path of the saved state. */
  constructor(state: string, log: Logger) {
    this.#path = state.replace(/\.state$/, '.traffic')
    this.#log = log
  }

  /** Undefined if there is no file, not a valid one, or one of another start of the machine. */
  read(): SavedSums | undefined {
    try {
      const text = readPrivateFile(this.#path)
      if (text === undefined) return undefined
      const value: unknown = text.length > maxLength ? undefined : JSON.parse(text)
      if (isSaved(value) && value.boot === this.#boot) return value
      this.#log.info('The saved sums of packets and bytes are not used', { path: this.#path })
    } catch (error) {
      this.#log.warn('The saved sums of packets and bytes are not used', {
        path: this.#path,
        error: describeError(error),
      })
    }
    return undefined
  }

  write(sums: SavedSums): void {
    try {
      writePrivateFile(this.#path, JSON.stringify({ version, boot: this.#boot, ...sums }))
    } catch (error) {
      this.#log.warn('The sums of packets and bytes cannot be saved', {
        path: this.#path,
        error: describeError(error),
      })
    }
  }
}

const isList = (value: unknown): value is readonly unknown[] => Array.isArray(value)

const isCount = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0

const isFigures = (value: unknown): value is Figures => isList(value) && value.length === 4 && value.every(isCount)

function isSaved(value: unknown): value is SavedSums & { readonly boot: unknown } {
  if (typeof value !== 'object' || value === null) return false
  const { version: found, ports, open } = value as Record<string, unknown>
  return found === version && isList(ports) && ports.every(isPort) && isList(open) && open.every(isOpen)
}

function isPort(value: unknown): boolean {
  if (!isList(value)) return false
  const [family, name, figures, endpoints] = value
  const isKnown = (family === 4 || family === 6) && typeof name === 'string' && isFigures(figures)
  return isKnown && isList(endpoints) && endpoints.every(isEndpoint)
}

const isEndpoint = (value: unknown): boolean => isList(value) && typeof value[0] === 'string' && isFigures(value[1])

function isOpen(value: unknown): boolean {
  if (!isList(value)) return false
  const [key, port, endpoint, figures] = value
  return isCount(key) && isCount(port) && typeof endpoint === 'string' && isFigures(figures)
}
