import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { findViolations } from '../../support/json-schema.ts'
import { directory, shop, sluice } from '../run-command.ts'

const path = join(import.meta.dirname, '../../../docs/schema/sluice-v1.schema.json')
const schema = JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>

const change = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.50, selector: {app: web}, ports: [{name: http, port: 80, nodePort: 30099}]}
`

describe('JSON of the commands', () => {
  const shopFolder = () => ['--manifests', directory({ 'shop.yaml': shop }), '--node', 'a']
  const file = () => join(directory({ 'change.yaml': change }), 'change.yaml')

  it.each([
    ['ExplanationList', () => ['explain', 'shop/web', ...shopFolder()]],
    ['ExplanationList', () => ['explain', '10.96.0.99:1', '--mode', 'iptables', ...shopFolder()]],
    ['Status', () => ['status', ...shopFolder()]],
    ['Plan', () => ['plan', '-f', file(), '--no-check', ...shopFolder()]],
    ['Migration', () => ['doctor', '--migrate-to', 'nftables', '--mode', 'iptables', ...shopFolder()]],
    ['Diagnosis', () => ['doctor']],
    ['Cleanup', () => ['cleanup', '--dry-run']],
  ])('is as documented: %s', async (kind, argv) => {
    const { stdout, stderr } = await sluice(...argv(), '-o', 'json')
    expect(stderr).toBe('')
    const answer = JSON.parse(stdout) as { apiVersion: string; kind: string }
    expect(answer).toMatchObject({ apiVersion: 'sluice/v1', kind })
    expect(findViolations(schema, answer)).toEqual([])
  })

  it('would not be as documented with another type, a missing field, a new field or another time', async () => {
    const { stdout } = await sluice('explain', 'shop/web', ...shopFolder(), '-o', 'json')
    const broken = (edit: (text: string) => string) => findViolations(schema, JSON.parse(edit(stdout)))
    expect(broken((text) => text)).toEqual([])
    expect(broken((text) => text.replace('"snat": null', '"snat": "unknown"'))).toEqual([
      '$.items[0].endpoints[0].snat: "unknown" is not of type boolean',
    ])
    expect(broken((text) => text.replace('"hairpin"', '"not checked"'))).toEqual([
      '$.items[0]: has no hairpin',
      '$.items[0]: not checked is not described',
    ])
    const event = { apiVersion: 'sluice/v1', kind: 'ProxyEvent', event: { kind: 'problem', object: 'x', message: 'y' } }
    expect(findViolations(schema, { ...event, time: '2026-01-02T03:04:05.678Z' })).toEqual([])
    expect(findViolations(schema, { ...event, time: '1767322800000' })).toHaveLength(1)
  })
})
