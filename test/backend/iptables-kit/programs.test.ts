// How the programs are run and wait for the lock, shown with scripts that play iptables.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { IptablesPrograms, isAtLeast } from '../../../src/backend/iptables-kit/programs.ts'
import { systemClock } from '../../../src/lib/time.ts'
import { useFakePrograms } from './fake-programs.ts'

const fake = useFakePrograms()

describe('programs', () => {
  const programsOf = (version: [number, number, number], lockTimeoutMs = 0) =>
    new IptablesPrograms({
      set: { flavour: 'legacy', suffix: '', version },
      family: 4,
      log: fake.log,
      clock: systemClock,
      lockTimeoutMs,
    })

  it('wait for the lock if their version can', async () => {
    const out = join(fake.folder(), 'args')
    fake.script('iptables', `echo "$@" >> ${out}`)
    fake.script('iptables-restore', `echo "restore $@" >> ${out}`)
    fake.keepSystemFolders()
    await programsOf([1, 8, 9]).succeeds(['-S', 'X'])
    await programsOf([1, 4, 21]).succeeds(['-S', 'X'])
    await programsOf([1, 8, 9]).restore('*nat\nCOMMIT\n')
    await programsOf([1, 6, 1]).restore('*nat\nCOMMIT\n')
    expect(readFileSync(out, 'utf8').trim().split('\n')).toEqual([
      '-w 5 -S X',
      '-S X',
      'restore -w 5 --noflush --counters',
      'restore --noflush --counters',
    ])
  })

  const locked = 'echo "Another app is currently holding the xtables lock. Stopped waiting after 5s." >&2; exit 4'

  it('report that the lock is held', async () => {
    fake.script('iptables-restore', locked)
    fake.keepSystemFolders()
    await expect(programsOf([1, 8, 9]).restore('')).rejects.toMatchObject({ code: 'iptables-locked' })
  })

  it('try again until the time is over, and log that they wait', async () => {
    const file = join(fake.folder(), 'tried')
    fake.script('iptables-restore', `if [ -e ${file} ]; then exit 0; fi; touch ${file}; ${locked}`)
    fake.keepSystemFolders()
    const patient = programsOf([1, 8, 9], 60_000)
    await patient.restore('*filter\nCOMMIT\n*nat\nCOMMIT\n')
    expect(fake.logged()).toContain('Waiting for the xtables lock')
    expect(patient.commits).toBe(2)
  })

  it('are compared by version part by part', () => {
    expect(isAtLeast([1, 6, 2], [1, 6, 2])).toBe(true)
    expect(isAtLeast([1, 10, 0], [1, 6, 2])).toBe(true)
    expect(isAtLeast([1, 6, 1], [1, 6, 2])).toBe(false)
    expect(isAtLeast([2, 0, 0], [1, 6, 2])).toBe(true)
  })
})
