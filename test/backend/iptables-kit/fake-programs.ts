// Scripts in a folder of their own that play the iptables programs, found through PATH for the length of a test.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach } from 'vitest'
import { createLogger, type Logger } from '../../../src/lib/log.ts'

export interface FakePrograms {
  /** The folder with the scripts. PATH is only this folder until `keepSystemPath` is called. */
  readonly folder: () => string
  readonly log: Logger
  /** What was logged since the test began. */
  readonly logged: () => string
  readonly forget: () => void
  readonly script: (name: string, body: string) => void
  /** Lets scripts use other programs. */
  readonly keepSystemPath: () => void
}

export function useFakePrograms(): FakePrograms {
  let folder = ''
  let path: string | undefined
  let logged = ''
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'sluice-programs-'))
    path = process.env.PATH
    process.env.PATH = folder
    logged = ''
  })
  afterEach(() => {
    process.env.PATH = path
    rmSync(folder, { recursive: true })
  })
  return {
    folder: () => folder,
    log: createLogger({ format: 'text', verbosity: 0, write: (line) => (logged += line) }),
    logged: () => logged,
    forget: () => {
      logged = ''
    },
    script: (name, body) => writeFileSync(join(folder, name), `#!/bin/sh\n${body}\n`, { mode: 0o755 }),
    keepSystemPath: () => {
      process.env.PATH = `${folder}:${path}`
    },
  }
}
