// `sluice plan` with the kernel's opinion: tried in a namespace of its own, and nothing of it stays.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it } from 'vitest'
import { shop } from '../cli/support.ts'

const worker = join(import.meta.dirname, '../cli/sluice.worker.ts')
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

const plan = (...argv: string[]) =>
  spawnSync(
    process.execPath,
    ['--import', 'tsx', worker, 'plan', '-f', file, '--manifests', folder, '--node', 'a', ...argv],
    { encoding: 'utf8' },
  )

describe.each(['nftables', 'iptables'])('plan, %s', (mode) => {
  it('is accepted by the kernel and leaves nothing behind', () => {
    const rules = () => spawnSync('nft', ['list', 'ruleset'], { encoding: 'utf8' }).stdout
    const before = rules()
    const { status, stdout, stderr } = plan('--mode', mode)
    expect(stderr).toBe('')
    expect(status).toBe(2)
    expect(stdout).toContain('The kernel accepts this (tried in a network namespace that is gone again).')
    expect(stdout).toContain('203.0.113.80')
    expect(rules()).toBe(before)
    expect(readdirSync('/run/netns').filter((name) => name.startsWith('sluice-plan-'))).toEqual([])
  })
})
