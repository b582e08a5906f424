// What the kernel tests of iptables share: a lock of their own, and what iptables-save says is left of services.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll } from 'vitest'
import type { StartOptions } from '../lab/driver.ts'

export type Flavour = 'nft' | 'legacy'

/** The lock is the machine's, not the namespace's: without one of our own we would wait for whoever else uses iptables. */
export function privateLock(): string {
  const directory = mkdtempSync(join(tmpdir(), 'sluice-xtables-'))
  afterAll(() => rmSync(directory, { recursive: true, force: true }))
  const file = join(directory, 'lock')
  process.env.XTABLES_LOCKFILE = file
  return file
}

/** Chains of services, and rules in shared chains that name one. */
export const holdings =
  (flavour: Flavour) =>
  async ({ node, families }: StartOptions): Promise<readonly string[]> => {
    const left: string[] = []
    for (const family of families) {
      const program = `${family === 4 ? 'iptables' : 'ip6tables'}-${flavour}-save`
      const { code, stdout, stderr } = await node.exec(program, [])
      if (code !== 0) left.push(`${program}: ${stderr}`)
      if (!stdout.includes(':KUBE-SERVICES ')) left.push(`${program} does not even show the shared chains`)
      left.push(...stdout.split('\n').filter((line) => /KUBE-(?:SVC|SVL|EXT|FW|SEP)-|"\S+\/\S+[ "]/.test(line)))
    }
    return left
  }
