import { describe, expect, it } from 'vitest'
import { findMode } from '../../../src/backend/modes.ts'
import { compareModes } from '../../../src/commands/doctor/migration.ts'
import { readFromApi } from '../../../src/commands/sources/from-api.ts'
import { withManifests } from '../../../src/commands/sources/manifest-server.ts'
import { configFrom } from '../../../src/commands/sources/source.ts'
import { defaultSluiceConfig } from '../../../src/config/sluice-config.ts'
import { directory, shop, sluice } from '../run-command.ts'

const inputs = async (text: string) =>
  withManifests(directory({ 'shop.yaml': text }), async ({ api }) => ({
    ...(await readFromApi(api, { name: 'a', config: configFrom(new Map([['mode', 'iptables']])) })),
    limits: defaultSluiceConfig().limits,
  }))

const migration = { from: findMode('iptables'), to: findMode('nftables') }

describe('from iptables to nftables', () => {
  it('reports differences per service: loopback node ports, secondary addresses, unused ports', async () => {
    const known = await inputs(shop)
    const found = await compareModes(
      { ...known, nodeAddresses: [...known.nodeAddresses, '192.168.6.1'] },
      migration,
      new Map(),
    )
    const web = found
      .filter(({ service }) => service === 'shop/web:http')
      .map(({ packet, now, later }) => [packet, now, later])
    expect(web).toEqual([
      ['to a port of 10.96.0.50 that no service uses', 'left to the node or to routing', 'refused'],
      [
        'from outside to node port 192.168.6.1:30080',
        'forwarded (2 endpoints, source rewritten)',
        'left to the node or to routing',
      ],
      ['on the node to 127.0.0.1:30080', 'forwarded (2 endpoints, source rewritten)', 'left to the node or to routing'],
    ])
    expect(found.some(({ service, later }) => service === '*' && later === 'dropped')).toBe(true)
  })

  it('finds fewer differences if the configuration asks for all addresses', async () => {
    const known = await inputs(shop)
    const file = `${directory({ 'c.yaml': 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nnodePortAddresses: ["0.0.0.0/0"]\n' })}/c.yaml`
    const more = { ...known, nodeAddresses: [...known.nodeAddresses, '192.168.6.1'] }
    const found = await compareModes(more, migration, new Map([['config', file]]))
    expect(found.map(({ packet }) => packet)).not.toContain('from outside to node port 192.168.6.1:30080')
  })

  it('runs as a command and prints every service once', async () => {
    const path = directory({ 'shop.yaml': shop })
    const { status, stdout } = await sluice(
      'doctor',
      '--migrate-to',
      'nftables',
      '--mode',
      'iptables',
      '--manifests',
      path,
      '--node',
      'a',
    )
    expect(status).toBe(0)
    expect(stdout).toContain('From iptables to nftables: ')
    expect(stdout).toContain('shop/web:http')
  })
})
