// Scripts in a folder of their own that play the iptables programs, found instead of the system's for the length of a test.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach } from 'vitest'
import { createLogger, type Logger } from '../../../src/lib/log.ts'
import { programSearch, systemFolders } from '../../../src/sys/process/find-program.ts'

export interface FakePrograms {
  /** The folder with the scripts. Programs are found only there until `keepSystemFolders` is called. */
  readonly folder: () => string
  readonly log: Logger
  /** What was logged since the test began. */
  readonly logged: () => string
  readonly forget: () => void
  readonly script: (name: string, body: string) => void
  /** Lets scripts use other programs. */
  readonly keepSystemFolders: () => void
}

export function useFakePrograms(): FakePrograms {
  let folder = ''
  let logged = ''
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'sluice-programs-'))
    programSearch.folders = [folder]
    logged = ''
  })
  afterEach(() => {
    programSearch.folders = systemFolders
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
    keepSystemFolders: () => {
      programSearch.folders = [folder, ...systemFolders]
    },
  }
}
