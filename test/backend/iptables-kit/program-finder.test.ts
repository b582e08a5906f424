// How often programs are started to find out which programs and families there are, shown with scripts that play iptables.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { ProgramFinder } from '../../../src/backend/iptables-kit/program-finder.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { useFakePrograms } from './fake-programs.ts'

const fake = useFakePrograms()

const countCalls = (): number => readFileSync(join(fake.folder(), 'calls'), 'utf8').split('\n').length - 1

function install(exitCode = 0): void {
  for (const name of ['iptables', 'ip6tables']) {
    fake.script(name, `echo "$@" >> ${join(fake.folder(), 'calls')}; echo 'iptables v1.6.1'; exit ${exitCode}`)
  }
}

it('remembers what it has found for some seconds', async () => {
  install()
  const clock = new FakeClock()
  const finder = new ProgramFinder('iptables', clock)
  expect(await finder.families()).toEqual([4, 6])
  const once = countCalls()
  expect(await finder.families()).toEqual([4, 6])
  expect((await finder.find(fake.log)).version).toEqual([1, 6, 1])
  expect(countCalls()).toBe(once)
  await clock.advance(5_000)
  expect(await finder.families()).toEqual([4, 6])
  expect(countCalls()).toBe(2 * once)
})

it('does not remember a failure', async () => {
  const finder = new ProgramFinder('ipvs', new FakeClock())
  await expect(finder.families()).rejects.toMatchObject({ code: 'iptables-missing' })
  await expect(finder.find(fake.log)).rejects.toMatchObject({ code: 'iptables-missing' })
  install()
  expect(await finder.families()).toEqual([4, 6])
})
