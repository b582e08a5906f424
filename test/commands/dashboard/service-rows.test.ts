import { describe, expect, it } from 'vitest'
import { makeServiceRows } from '../../../src/commands/dashboard/service-rows.ts'
import type { PortSummary, ServiceSummary } from '../../../src/http/admin.ts'

const port = (change: Partial<PortSummary> = {}): PortSummary => ({
  name: 'shop/web:http',
  protocol: 'tcp',
  frontends: [{ kind: 'cluster-ip', ip: '10.96.0.1', port: 80, answersAt: '10.96.0.1:80' }],
  internal: 'cluster',
  external: 'cluster',
  endpoints: [
    { address: '10.1.0.1:80', local: true },
    { address: '10.1.0.2:80', local: false },
  ],
  ejected: [],
  drainingUntil: '',
  affinitySeconds: 0,
  ...change,
})

const summary = (change: Partial<ServiceSummary> = {}): ServiceSummary => ({
  service: 'shop/web',
  family: 4,
  ports: [port()],
  pending: false,
  entries: 3,
  wrong: [],
  lost: [],
  quarantine: '',
  ...change,
})

const stateOf = (change: Partial<ServiceSummary>) => makeServiceRows([summary(change)])[0]?.state

describe('rows of the list of services', () => {
  it('puts the ports and families of a service into one row', () => {
    const second = port({
      name: 'shop/web:https',
      frontends: [{ kind: 'node-port', ip: '', port: 30443, answersAt: ':30443' }],
    })
    const rows = makeServiceRows([
      summary({ ports: [port(), second] }),
      summary({ family: 6 }),
      summary({ service: 'shop/db' }),
    ])
    expect(rows.map(({ name }) => name)).toEqual(['shop/web', 'shop/db'])
    expect(rows[0]).toMatchObject({
      ports: 3,
      endpoints: 2,
      local: 1,
      addresses: ['10.96.0.1:80/tcp', ':30443/tcp'],
      state: 'ok',
    })
  })

  it('counts the addresses that do not fit', () => {
    const frontends = [1, 2, 3, 4, 5].map((n) => ({
      kind: 'external-ip' as const,
      ip: `1.1.1.${n}`,
      port: 80,
      answersAt: `1.1.1.${n}:80`,
    }))
    const [row] = makeServiceRows([summary({ ports: [port({ frontends })] })])
    expect(row).toMatchObject({ addresses: ['1.1.1.1:80/tcp', '1.1.1.2:80/tcp', '1.1.1.3:80/tcp'], moreAddresses: 2 })
  })

  it('names the worst state', () => {
    expect(stateOf({ quarantine: 'refused', pending: true })).toBe('quarantined')
    expect(stateOf({ wrong: ['chain x is not in the kernel'] })).toBe('wrong')
    expect(stateOf({ lost: ['10.0.0.1:80/tcp (ns/older)'], pending: true })).toBe('conflict')
    expect(stateOf({ ports: [port({ ejected: ['10.1.0.2:80: resets'] })] })).toBe('ejected')
    expect(stateOf({ pending: true })).toBe('pending')
    expect(stateOf({ ports: [port({ endpoints: [] })] })).toBe('empty')
  })
})
