// Counts the connections that a rolling update behind a load balancer loses, with policy Local: kube-proxy's beside ours, in one run.
//
// Run as root: npx tsx bench/local-drain.ts. docs/health.md has its figures.

import { playRollingUpdate, type RollingUpdate } from '../test/kernel/rolling-update.ts'
import { hasKubeProxy } from '../test/kernel/whole-proxy.ts'

const runs: readonly (readonly [string, RollingUpdate])[] = [
  ...(hasKubeProxy ? ([['kube-proxy', { mode: 'nftables', program: 'kube-proxy' }]] as const) : []),
  ['Sluice', { mode: 'nftables' }],
  ...['nftables', 'iptables', 'userspace'].map((mode) => ['Sluice, local-drain: 30s', { mode, drain: '30s' }] as const),
]

console.log('| proxy | mode | connections | of these while the balancer did not know yet | failed |')
console.log('| --- | --- | ---: | ---: | ---: |')
for (const [name, update] of runs) {
  const { made, late, failed } = await playRollingUpdate(update)
  const total = Object.values(failed).reduce((sum, count) => sum + count, 0)
  console.log(`| ${name} | ${update.mode} | ${made} | ${late} | ${total} |`)
}
process.exit(0)
