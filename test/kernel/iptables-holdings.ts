// What the kernel tests of iptables share: a lock of their own, and the service rules that iptables-save still shows.

import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll } from 'vitest'
import type { StartOptions } from '../lab/driver.ts'

export type Flavour = 'nft' | 'legacy'

/** The lock belongs to the machine, not to the namespace: without a private lock a test would wait for other users of iptables. */
export function privateLock(): string {
  const directory = mkdtempSync(join(tmpdir(), 'sluice-xtables-'))
  afterAll(() => rmSync(directory, { recursive: true, force: true }))
  const file = join(directory, 'lock')
  process.env.XTABLES_LOCKFILE = file
  return file
}

/** Service chains, and rules in shared chains that name a service. */
export const holdings =
  (flavour: Flavour) =>
  async ({ node, families }: StartOptions): Promise<readonly string[]> => {
    const left: string[] = []
    for (const family of families) {
      const program = `${family === 4 ? 'iptables' : 'ip6tables'}-${flavour}-save`
      const { code, stdout, stderr } = await node.exec(program, [])
      if (code !== 0) left.push(`${program}: ${stderr}`)
      if (!stdout.includes(':KUBE-SERVICES ')) left.push(`${program} does not show the shared chains`)
      left.push(...stdout.split('\n').filter((line) => /KUBE-(?:SVC|SVL|EXT|FW|SEP)-|"\S+\/\S+[ "]/.test(line)))
    }
    return left
  }
