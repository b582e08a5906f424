// Which flavour of the programs is used, shown with scripts that play iptables.

import { describe, expect, it } from 'vitest'
import { findPrograms, type KernelLists } from '../../../src/backend/iptables-kit/flavour.ts'
import { useFakePrograms } from './fake-programs.ts'

const fake = useFakePrograms()

/** What the kernel lists. The scripts know the rules. */
const lists = { nft: [] as string[], legacy: [] as string[] }
const kernel: KernelLists = { nftChains: async () => lists.nft, legacyTables: () => lists.legacy }

/** Installs a flavour whose tables hold `all`; its table mangle, read alone, holds `mangle`. */
function install(suffix: string, version: string, all: string, mangle = ''): void {
  if (suffix === '-nft') lists.nft = mangle === '' ? [] : [`mangle ${mangle.slice(1, mangle.indexOf(' '))}`]
  if (suffix === '-legacy') lists.legacy = all === '' ? [] : ['filter']
  for (const name of ['iptables', 'ip6tables']) {
    fake.script(`${name}${suffix}`, `echo '${version}'`)
    fake.script(`${name}${suffix}-save`, `if [ "$2" = mangle ]; then echo '${mangle}'; else echo '${all}'; fi`)
  }
}

const nft = 'iptables v1.8.9 (nf_tables)'
const legacy = 'iptables v1.8.9 (legacy)'
const rules = '-A INPUT -j A\n-A INPUT -j B'

describe('the flavour', () => {
  it('is the one that is installed', async () => {
    await expect(findPrograms(fake.log, kernel)).rejects.toMatchObject({ code: 'iptables-missing' })
    install('', 'iptables v1.6.1', '')
    expect(await findPrograms(fake.log, kernel)).toEqual({ flavour: 'legacy', suffix: '', version: [1, 6, 1] })
    install('-nft', nft, '')
    expect(await findPrograms(fake.log, kernel)).toEqual({ flavour: 'nft', suffix: '-nft', version: [1, 8, 9] })
  })

  it('is that of plain iptables if neither holds rules', async () => {
    install('-nft', nft, '')
    install('-legacy', legacy, '')
    install('', legacy, '')
    expect((await findPrograms(fake.log, kernel)).flavour).toBe('legacy')
    install('', nft, '')
    expect((await findPrograms(fake.log, kernel)).flavour).toBe('nft')
    expect(fake.logged()).toBe('')
  })

  it('is that of kubelet, however many rules the other holds', async () => {
    install('', legacy, '')
    install('-legacy', legacy, rules)
    install('-nft', nft, '', ':KUBE-IPTABLES-HINT - [0:0]')
    expect((await findPrograms(fake.log, kernel)).flavour).toBe('nft')
    expect(fake.logged()).toContain('Both flavours of iptables hold rules')
    fake.forget()
    install('-nft', nft, '', ':KUBE-KUBELET-CANARY - [0:0]')
    install('-legacy', legacy, '')
    expect((await findPrograms(fake.log, kernel)).flavour).toBe('nft')
    expect(fake.logged()).toBe('')
  })

  it('is the one with more rules if kubelet has made no chains', async () => {
    install('', legacy, '')
    install('-legacy', legacy, '-A INPUT -j A')
    install('-nft', nft, rules)
    expect((await findPrograms(fake.log, kernel)).flavour).toBe('nft')
    expect(fake.logged()).toContain('Both flavours')
  })

  it('is found without listing rules where the kernel knows that there is nothing to compare', async () => {
    for (const name of ['iptables-nft', 'iptables-legacy', 'iptables']) {
      fake.script(name, `echo '${name === 'iptables-legacy' ? legacy : nft}'`)
      fake.script(`${name}-save`, 'exit 99')
    }
    lists.legacy = []
    lists.nft = ['nat KUBE-SERVICES', 'mangle KUBE-PROXY-CANARY']
    expect((await findPrograms(fake.log, kernel)).flavour).toBe('nft')
    lists.nft = []
    expect((await findPrograms(fake.log, kernel)).flavour).toBe('nft')
  })
})
