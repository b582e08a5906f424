// Our own settings follow their file while the proxy runs. Real files and real notifications of the kernel.

import { mkdirSync, mkdtempSync, renameSync, rmSync, symlinkSync, unlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { loadSluiceConfig, type SluiceConfig } from '../../src/config/sluice-config.ts'
import { SettingsReload } from '../../src/daemon/settings-reload.ts'
import { createLogger } from '../../src/lib/log.ts'
import { type Clock, systemClock } from '../../src/lib/time.ts'
import { fastClock } from '../support/fast-clock.ts'
import { until } from '../support/until.ts'

const text = (more: string) => `apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\n${more}\n`
const failures = (count: number) => text(`outliers: { failures: ${count} }`)

let folder: string
let file: string
let settings: SluiceConfig
let reload: SettingsReload | undefined
let changes: (readonly string[])[]
let log: string
let isRefused: boolean

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-settings-'))
  file = join(folder, 'sluice.yaml')
  changes = []
  log = ''
  isRefused = false
})

afterEach(() => {
  reload?.close()
  rmSync(folder, { recursive: true, force: true })
})

function start(first: string, clock: Clock = systemClock): void {
  settings = loadSluiceConfig(file, first)
  const write = (line: string) => {
    log += line
  }
  reload = new SettingsReload({
    file,
    settings,
    onChanged: (fields) => changes.push(fields),
    metrics: {
      settings: {
        applied: () => undefined,
        refused: (now) => {
          isRefused = now
        },
      },
    },
    clock,
    log: createLogger({ format: 'text', verbosity: 0, vmodule: [], write }),
  })
}

it('takes over a file that is written, and one that is renamed over it', async () => {
  writeFileSync(file, failures(3))
  start(failures(3))
  writeFileSync(file, failures(4))
  await until('the written file counts', () => settings.outliers.failures === 4)
  writeFileSync(`${file}.new`, failures(5))
  renameSync(`${file}.new`, file)
  await until('the renamed file counts', () => settings.outliers.failures === 5)
  expect(changes).toEqual([['outliers.failures'], ['outliers.failures']])
  expect(log).toContain('New settings take effect')
})

it('takes over an updated ConfigMap volume, whose link moves', async () => {
  for (const [version, count] of [
    ['..1', 3],
    ['..2', 6],
  ] as const) {
    mkdirSync(join(folder, version))
    writeFileSync(join(folder, version, 'sluice.yaml'), failures(count))
  }
  symlinkSync('..1', join(folder, '..data'))
  symlinkSync('..data/sluice.yaml', file)
  start(failures(3))
  symlinkSync('..2', join(folder, '..data_tmp'))
  renameSync(join(folder, '..data_tmp'), join(folder, '..data'))
  await until('the new volume counts', () => settings.outliers.failures === 6)
})

it('reports a file that is not valid or gone, and keeps the settings until it is valid again', async () => {
  writeFileSync(file, failures(3))
  start(failures(3))
  writeFileSync(file, text('outliers: { failures: many }'))
  await until('the bad file is refused', () => isRefused)
  expect(log).toContain(`${file}:3: outliers.failures: given`)
  unlinkSync(file)
  await until('the missing file is reported', () => log.includes('ENOENT'))
  expect(settings.outliers.failures).toBe(3)
  expect(changes).toEqual([])
  writeFileSync(file, failures(7))
  await until('the valid file counts', () => settings.outliers.failures === 7)
  expect(isRefused).toBe(false)
})

it('says which new values need a restart, and leaves them alone', async () => {
  writeFileSync(file, failures(3))
  start(failures(3))
  writeFileSync(file, text('limits: { portsPerService: 7 }\noutliers: { failures: 3 }'))
  await until('the restart is mentioned', () => log.includes('limits.portsPerService'))
  expect(settings.limits.portsPerService).toBe(2_000)
  expect(changes).toEqual([])
})

it('tries a file again that cannot be read, without an event of its folder', async () => {
  const elsewhere = join(folder, 'elsewhere')
  mkdirSync(join(elsewhere, 'settings'), { recursive: true })
  symlinkSync('elsewhere/settings', file)
  start(failures(3), fastClock(100))
  await until('the file is refused', () => isRefused)
  rmSync(join(elsewhere, 'settings'), { recursive: true })
  writeFileSync(join(elsewhere, 'settings'), failures(7))
  await until('the file counts', () => settings.outliers.failures === 7)
  expect(isRefused).toBe(false)
})
