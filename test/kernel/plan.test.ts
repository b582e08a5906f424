// Runs `sluice plan` with the trial in a temporary network namespace, and checks that nothing remains of it.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { shop } from '../commands/run-command.ts'
import { folderFirst } from '../support/program-folders.ts'

const worker = join(import.meta.dirname, '../commands/sluice.worker.ts')
const folder = mkdtempSync(join(tmpdir(), 'sluice-plan-'))
afterAll(() => rmSync(folder, { recursive: true, force: true }))
writeFileSync(join(folder, 'shop.yaml'), shop)

const change = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  selector: {app: web}
  loadBalancerSourceRanges: [198.51.100.0/24, 198.51.100.128/25]
  sessionAffinity: ClientIP
  ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.80}]}}
`
const directory = mkdtempSync(join(tmpdir(), 'sluice-change-'))
const file = join(directory, 'change.yaml')
writeFileSync(file, change)
afterAll(() => rmSync(directory, { recursive: true, force: true }))

const planWith = (env: NodeJS.ProcessEnv, ...argv: string[]) =>
  spawnSync(
    process.execPath,
    ['--import', 'tsx', worker, 'plan', '-f', file, '--manifests', folder, '--node', 'a', ...argv],
    { encoding: 'utf8', env: { ...process.env, ...env } },
  )
const plan = (...argv: string[]) => planWith({}, ...argv)

describe.each(['nftables', 'iptables'])('plan, %s', (mode) => {
  it('is accepted by the kernel and leaves nothing behind', () => {
    const rules = () => spawnSync('nft', ['list', 'ruleset'], { encoding: 'utf8' }).stdout
    const before = rules()
    const { status, stdout, stderr } = plan('--mode', mode)
    expect(stderr).toBe('')
    expect(status).toBe(2)
    expect(stdout).toContain('The kernel accepts this (tried in a temporary network namespace).')
    expect(stdout).toContain('203.0.113.80')
    expect(rules()).toBe(before)
    expect(readdirSync('/run/netns').filter((name) => name.startsWith('sluice-plan-'))).toEqual([])
  })
})

it('exits with 1 and names the service and what the kernel refuses', () => {
  // These wrappers fail as iptables-restore does when the kernel refuses the new rules.
  const program = (name: string) => spawnSync('sh', ['-c', `command -v ${name}`], { encoding: 'utf8' }).stdout.trim()
  for (const name of ['iptables-restore', 'iptables-nft-restore', 'iptables-legacy-restore']) {
    const script = `#!/bin/sh
text=$(cat; echo .)
case "$text" in *203.0.113.80*) echo "${name}: line $(printf %s "$text" | grep -n COMMIT | tail -1 | cut -d: -f1) failed" >&2; exit 1;; esac
printf %s "\${text%.}" | exec ${program(name)} "$@"
`
    writeFileSync(join(directory, name), script, { mode: 0o755 })
  }
  const { status, stdout, stderr } = planWith(folderFirst(directory), '--mode', 'iptables')
  expect(status).toBe(1)
  expect(stdout).toContain('The kernel refuses')
  expect(stderr).toMatch(/^sluice plan: the kernel refuses this: shop\/web: .*failed/m)
})
