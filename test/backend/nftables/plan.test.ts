import { describe, expect, it } from 'vitest'
import { base } from '../../../src/backend/nftables/base.ts'
import type { ChainEntry, NftEntry } from '../../../src/backend/nftables/entries.ts'
import { plan, removeNested } from '../../../src/backend/nftables/plan.ts'
import { BalanceChains, balanceName, parseBalanceName } from '../../../src/backend/nftables/rules.ts'
import type { ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { endpoint, everyAddress, frozen, service, slice, tcp, view } from '../../support/builders.ts'
import { resolve } from '../../support/resolve.ts'

const here = endpoint('10.180.0.1', 'here')
const there = endpoint('10.180.2.1')

function planned(given: Partial<ServiceRecord>, slices: readonly SliceRecord[], node = view()): readonly NftEntry[] {
  return resolve(service(given), slices, node).flatMap((port) => plan(frozen(port), frozen(node)))
}

/** Lists the id and digest of every entry, except of chains and sets. */
const lines = (entries: readonly NftEntry[]): string[] =>
  entries.filter(({ kind }) => kind !== 'chain' && kind !== 'set').map(({ id, digest }) => `${id} = ${digest}`)

const chain = (entries: readonly NftEntry[], name: string) =>
  entries.find((entry): entry is ChainEntry => entry.kind === 'chain' && entry.chain.name.startsWith(name))?.chain

describe('a service port as nftables entries', () => {
  it('has only elements: the address, a balanced frontend, and hairpin connections of local endpoints', () => {
    expect(lines(planned({}, [slice([here, there])]))).toEqual([
      'cluster-ips 172.30.0.41 = ',
      'frontend 172.30.0.41 tcp 80 = plain 10.180.0.1:80,10.180.2.1:80  # ns1/svc1:p80',
      'hairpin-connections 10.180.0.1 10.180.0.1 tcp 80 = ',
    ])
  })

  it('keeps comments so short that nft can read them, also with the longest names', () => {
    const key = `${'n'.repeat(63)}/${'s'.repeat(63)}`
    const given = { key, ports: [tcp(80, 'p'.repeat(15), 3001)] }
    const own = slice([here], { service: key, ports: [{ name: 'p'.repeat(15), protocol: 'tcp', port: 80 }] })
    for (const affinitySeconds of [0, 60]) {
      const text = JSON.stringify(planned({ ...given, affinitySeconds }, [own]))
      const comments = [...text.matchAll(/ # ([^"]*)"|"comment":"([^"]+)"/g)].map(
        ([, first, second]) => first ?? second,
      )
      const ofService = comments.filter((comment) => comment?.startsWith('nnn'))
      expect(ofService.length).toBeGreaterThan(1)
      expect(new Set(ofService)).toEqual(new Set([`${key.slice(0, 125)}...`]))
    }
  })

  it('rejects traffic on every frontend if there are no endpoints at all', () => {
    const given = { externalIps: ['192.168.99.11'], loadBalancerIps: ['1.2.3.4'], type: 'LoadBalancer' as const }
    expect(lines(planned({ ...given, ports: [tcp(80, 'p80', 3001)] }, []))).toEqual([
      'cluster-ips 172.30.0.41 = ',
      'no-endpoint-services 172.30.0.41 tcp 80 = goto reject-chain # ns1/svc1:p80',
      'no-endpoint-services 192.168.99.11 tcp 80 = goto reject-chain # ns1/svc1:p80',
      'no-endpoint-services 1.2.3.4 tcp 80 = goto reject-chain # ns1/svc1:p80',
      'no-endpoint-nodeports tcp 3001 = goto reject-chain # ns1/svc1:p80',
    ])
  })

  it('drops traffic at the cluster IP with internal policy Local if all endpoints are elsewhere', () => {
    expect(lines(planned({ internalPolicy: 'Local' }, [slice([there])]))).toContain(
      'no-endpoint-services 172.30.0.41 tcp 80 = drop # ns1/svc1:p80',
    )
  })

  it('keeps both lists of endpoints with external policy Local', () => {
    const given = { type: 'NodePort' as const, externalPolicy: 'Local' as const, ports: [tcp(80, 'p80', 3001)] }
    expect(lines(planned(given, [slice([here, there])]))).toContain(
      'frontend tcp 3001 = local 10.180.0.1:80,10.180.2.1:80 10.180.0.1:80 # ns1/svc1:p80',
    )
    // Without a local endpoint the frontend still short-circuits local traffic, and drops the rest.
    expect(lines(planned(given, [slice([there])]))).toContain('frontend tcp 3001 = local 10.180.2.1:80  # ns1/svc1:p80')
  })

  it('lists source ranges once and without nested ones, and the load balancer itself if the node is allowed', () => {
    const given = {
      type: 'LoadBalancer' as const,
      loadBalancerIps: ['1.2.3.4'],
      sourceRanges: ['192.168.0.0/24', '192.168.0.0/16', '203.0.113.0/25'],
    }
    const firewall = lines(planned(given, [slice([here])])).filter((line) => line.startsWith('firewall'))
    expect(firewall).toEqual([
      'firewalled-ips 1.2.3.4 tcp 80 =  # ns1/svc1:p80',
      'firewall-allowed 1.2.3.4 tcp 80 192.168.0.0/16 =  # ns1/svc1:p80',
      'firewall-allowed 1.2.3.4 tcp 80 203.0.113.0/25 =  # ns1/svc1:p80',
      'firewall-allowed 1.2.3.4 tcp 80 1.2.3.4/32 =  # ns1/svc1:p80',
    ])
    expect(removeNested(['10.0.0.0/8', '0.0.0.0/0', '10.0.0.0/8'])).toEqual(['0.0.0.0/0'])
  })

  it('spreads the rules of many endpoints with affinity over chains, so that another endpoint changes one of them', () => {
    const many = Array.from({ length: 250 }, (_, i) => endpoint(`10.180.1.${i}`))
    const chainsOf = (count: number) => {
      const entries = planned({ affinitySeconds: 60 }, [slice(many.slice(0, count))])
      return entries
        .filter((entry): entry is ChainEntry => entry.kind === 'chain')
        .map(({ chain: { name, rules } }) => ({ name, rules }))
    }
    const [before, after] = [chainsOf(249), chainsOf(250)]
    const returning = after.filter(({ rules }) => JSON.stringify(rules).includes('in-set'))
    expect(returning.flatMap(({ rules }) => rules)).toHaveLength(250)
    expect(Math.max(...returning.map(({ rules }) => rules.length))).toBeLessThan(100)
    const dispatch = after.at(-1)
    const jumps = dispatch?.rules.flatMap(({ statements }) => statements.filter(({ kind }) => kind === 'jump'))
    expect(jumps).toEqual(returning.map(({ name }) => ({ kind: 'jump', chain: name })))
    const old = new Map(before.map(({ name, rules }) => [name, JSON.stringify(rules)]))
    const changed = after.filter(({ name, rules }) => old.get(name) !== JSON.stringify(rules)).map(({ name }) => name)
    expect(changed.map((name) => name.replace(/-.*/, ''))).toEqual(['endpoint', 'service', 'service'])
  })

  it('has its own chains and sets with affinity, with the same names as those of kube-proxy', () => {
    const entries = planned({ affinitySeconds: 10_800, type: 'NodePort', ports: [tcp(80, 'p80', 3001)] }, [
      slice([here]),
    ])
    const service = 'ULMVA6XW-ns1/svc1/tcp/p80'
    const endpointBase = entries.find(({ id }) => id.startsWith('chain endpoint-'))?.id.slice('chain endpoint-'.length)
    expect(entries.map(({ id }) => id)).toEqual([
      'cluster-ips 172.30.0.41',
      'service-ips 172.30.0.41 tcp 80',
      'service-nodeports tcp 3001',
      'hairpin-connections 10.180.0.1 10.180.0.1 tcp 80',
      `set affinity-${endpointBase}`,
      `chain endpoint-${endpointBase}`,
      `chain service-${service}`,
      `chain external-${service}`,
    ])
    expect(chain(entries, 'service-')?.rules.map(({ statements }) => statements.map(({ kind }) => kind))).toEqual([
      ['in-set', 'goto'],
      ['random-verdict'],
      ['drop'],
    ])
  })

  it('listens on loopback only where a loopback CIDR is named, and not for SCTP', () => {
    const named = { all: false, addresses: ['127.0.0.1'], loopback: true, loopbackNamed: true }
    const given = { type: 'NodePort' as const, ports: [tcp(80, 'p80', 3001)] }
    const listeners = (node = view()) =>
      lines(planned(given, [slice([here])], node)).filter((l) => l.startsWith('listener'))
    expect(listeners()).toEqual([])
    expect(listeners(view({ nodePorts: everyAddress }))).toEqual([])
    expect(listeners(view({ nodePorts: named }))).toEqual(['listener 127.0.0.1 tcp 3001 = 10.180.0.1:80 0'])
    // The configuration names 127.0.0.2/32: one node has only 127.0.0.1, and the other has both.
    expect(listeners(view({ nodePorts: { ...named, addresses: [] } }))).toEqual([])
    expect(listeners(view({ nodePorts: { ...named, addresses: ['127.0.0.2', '192.168.0.2'] } }))).toEqual([
      'listener 127.0.0.2 tcp 3001 = 10.180.0.1:80 0',
    ])
    const sctp = { ...given, ports: [{ name: 'p80', protocol: 'sctp' as const, port: 80, nodePort: 3001 }] }
    const entries = planned(sctp, [slice([here], { protocol: 'sctp' })], view({ nodePorts: named }))
    expect(lines(entries).filter((line) => line.startsWith('listener'))).toEqual([])
  })
})

describe('chains that frontends share', () => {
  it.each([
    { nodePort: false, policy: 'plain', cluster: 5, local: 0 },
    { nodePort: true, policy: 'masquerade', cluster: 1, local: 0 },
    { nodePort: false, policy: 'local', cluster: 12, local: 3 },
    { nodePort: true, policy: 'local', cluster: 0, local: 0 },
  ] as const)('have names that contain all parameters: $policy of $cluster', (balance) => {
    expect(parseBalanceName(balanceName(balance))).toEqual(balance)
    const chains = new BalanceChains(view()).find(balance)
    expect(chains.at(-1)?.chain.name).toBe(balanceName(balance))
    // A packet that finds no slot must not pass untranslated.
    for (const { chain } of chains) {
      expect(['drop', 'goto']).toContain(chain.rules.at(-1)?.statements.at(-1)?.kind)
    }
  })

  it('are not confused with other chains', () => {
    for (const name of ['lb-', 'lb-x', 'services', 'np-local-1', 'lb-5-5'])
      expect(parseBalanceName(name)).toBeUndefined()
  })
})

describe('the base', () => {
  const rulesOf = (name: string, node = view()) => chain(base(node), name)?.rules ?? []
  const kinds = (name: string, node = view()) =>
    rulesOf(name, node).map(({ statements }) => statements.map(({ kind }) => kind).join(' '))

  it('jumps only to chains that precede', () => {
    const seen = new Set<string>()
    for (const entry of base(view())) {
      if (entry.kind !== 'chain') continue
      for (const { statements } of entry.chain.rules) {
        for (const statement of statements) if ('chain' in statement) expect(seen).toContain(statement.chain)
      }
      seen.add(entry.chain.name)
    }
    expect(seen.size).toBe(15)
  })

  it('masquerades depending on the detector of local traffic', () => {
    expect(kinds('services')[0]).toBe('in-set match-address mark-or')
    expect(kinds('services', view({ local: { kind: 'prefix', prefix: 'veth' } }))[0]).toBe(
      'in-set match-interface mark-or',
    )
    expect(kinds('services', view({ masqueradeAll: true }))[0]).toBe('in-set mark-or')
    expect(kinds('services', view({ local: undefined }))).toHaveLength(2)
  })

  it('drops traffic to unallocated addresses of the configured service CIDRs', () => {
    expect(kinds('cluster-ips-check')).toEqual(['in-set in-set reject', 'match-address in-set address-type-local drop'])
    expect(kinds('cluster-ips-check', view({ serviceCidrs: [] }))).toEqual(['in-set in-set reject'])
    expect(kinds('cluster-ips-check', view({ serviceCidrs: ['172.30.0.0/16', '10.96.0.0/16'] }))).toHaveLength(3)
  })

  it('keeps API servers out of the checks of cluster IPs', () => {
    const ids = base(view({ apiServers: [{ ip: '172.30.0.9', port: 6443 }] })).map(({ id }) => id)
    expect(ids.filter((id) => id.startsWith('api-servers'))).toEqual(['api-servers 172.30.0.9 tcp 6443'])
  })

  it('serves node ports on the configured addresses, or on all but loopback', () => {
    const ids = (node = view()) => base(node).map(({ id }) => id)
    const nodePorts = { all: false, addresses: ['127.0.0.1', '192.168.0.2'], loopback: true, loopbackNamed: true }
    expect(ids(view({ nodePorts })).filter((id) => id.startsWith('nodeport-ips'))).toEqual(['nodeport-ips 192.168.0.2'])
    expect(ids(view({ nodePorts: everyAddress }))).not.toContain('set nodeport-ips')
    expect(kinds('services', view({ nodePorts: everyAddress })).at(-1)).toBe(
      'address-type-local match-address verdict-map',
    )
  })
})
