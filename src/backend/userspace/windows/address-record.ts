// A file that says which addresses this proxy has added to which interface: Windows does not keep who added an address.
//
// A line is written before an address is added, so that the successor of a killed process knows every address that may be there.

import { appendFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { describeError } from '../../../lib/errors.ts'
import type { Logger } from '../../../lib/log.ts'

export class AddressRecord {
  readonly #file: string
  readonly #log: Logger
  /** Interface by address. */
  readonly #interfaces: Map<string, string>

  /** Reads the file, and writes it again without the addresses that are gone. */
  constructor(file: string, log: Logger) {
    this.#file = file
    this.#log = log
    this.#interfaces = parseRecord(readRecord(file))
    if (this.#interfaces.size > 0) this.#try(() => writeFileSync(file, formatRecord(this.#interfaces)))
  }

  /** The addresses with the interface of each. */
  entries(): readonly (readonly [ip: string, name: string])[] {
    return [...this.#interfaces]
  }

  has(ip: string): boolean {
    return this.#interfaces.has(ip)
  }

  add(ip: string, name: string): void {
    if (this.#interfaces.get(ip) === name) return
    this.#interfaces.set(ip, name)
    this.#append(`+ ${ip} ${name}\n`)
  }

  delete(ip: string): void {
    if (this.#interfaces.delete(ip)) this.#append(`- ${ip}\n`)
  }

  /** Removes the file if it has nothing to say. */
  close(): void {
    if (this.#interfaces.size === 0) this.#try(() => rmSync(this.#file, { force: true }))
  }

  #append(line: string): void {
    this.#try(() => {
      mkdirSync(dirname(this.#file), { recursive: true })
      appendFileSync(this.#file, line)
    })
  }

  /** Without the file, services work, but a successor does not know the addresses of this process. */
  #try(write: () => void): void {
    try {
      write()
    } catch (error) {
      this.#log.warn('Cannot record which addresses were added', { file: this.#file, error: describeError(error) })
    }
  }
}

function readRecord(file: string): string {
  try {
    return readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

/** Lines that a crash has cut off are ignored. */
export function parseRecord(text: string): Map<string, string> {
  const interfaces = new Map<string, string>()
  for (const [, sign, ip = '', name = ''] of text.matchAll(/^([+-]) (\S+)(?: (.+?))?\r?\n/gm)) {
    if (sign === '-') interfaces.delete(ip)
    else if (name !== '') interfaces.set(ip, name)
  }
  return interfaces
}

const formatRecord = (interfaces: ReadonlyMap<string, string>): string =>
  [...interfaces].map(([ip, name]) => `+ ${ip} ${name}\n`).join('')
