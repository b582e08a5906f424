// Service ports as listeners and as lines of iptables, resolved with ports as the target would.

import { describe, expect, it } from 'vitest'
import { removal } from '../../../src/backend/userspace/cleanup.ts'
import type { UserspaceEntry } from '../../../src/backend/userspace/entries.ts'
import { base, plan } from '../../../src/backend/userspace/plan.ts'
import { compose, composeRefusal, hooks, ownChains } from '../../../src/backend/userspace/portal-chains.ts'
import { resolve } from '../../../src/model/resolve.ts'
import type { NodeView, ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { endpoint, everyAddress, service, slice, tcp, view } from '../../support/builders.ts'

function entriesOf(record: ServiceRecord, slices: readonly SliceRecord[], node: NodeView): readonly UserspaceEntry[] {
  return resolve(record, slices, node).flatMap((port) => plan(port, node))
}

/** Listeners get the ports 40001, 40002, … in order. */
function textOf(entries: readonly UserspaceEntry[], host: string | undefined = '192.168.0.2'): string {
  const listeners = entries.filter((entry) => entry.kind === 'listener')
  const opened = (id: string) => {
    const at = listeners.findIndex((entry) => entry.id === id)
    const protocol = listeners[at]?.listener.protocol
    return protocol === undefined || protocol === 'sctp' ? undefined : { protocol, port: 40_001 + at }
  }
  const rules = entries.filter((entry) => entry.kind === 'rules').sort((a, b) => (a.order < b.order ? -1 : 1))
  return compose({
    texts: rules.map(({ digest }) => digest),
    opened,
    listeners: listeners.flatMap(({ id }) => opened(id) ?? []),
    host,
    nodePorts: new Set(rules.flatMap(({ nodePorts }) => nodePorts)),
  })
}

/** The rules of a chain, without its name and without comments. */
const rules = (text: string, chain: string): string[] =>
  text
    .split('\n')
    .filter((line) => line.startsWith(`-A ${chain} `))
    .map((line) => line.slice(chain.length + 4).replace(/-m comment --comment "[^"]*" /, ''))

const balanced = service({
  type: 'LoadBalancer',
  ports: [tcp(80, 'p80', 30_080)],
  loadBalancerIps: ['1.2.3.4'],
  externalPolicy: 'Local',
  healthCheckNodePort: 30_000,
})
const pods = slice([endpoint('10.180.0.1', 'here'), endpoint('10.180.2.1')])

describe('listeners', () => {
  it('are one per endpoint set that is in use', () => {
    const listeners = entriesOf(balanced, [pods], view()).filter((entry) => entry.kind === 'listener')
    expect(listeners.map(({ id, listener }) => [id, listener.endpoints])).toEqual([
      ['ns1/svc1:p80/tcp cluster', ['10.180.0.1:80', '10.180.2.1:80']],
      ['ns1/svc1:p80/tcp local', ['10.180.0.1:80']],
    ])
    const plain = entriesOf(service(), [pods], view()).filter((entry) => entry.kind === 'listener')
    expect(plain.map(({ id }) => id)).toEqual(['ns1/svc1:p80/tcp cluster'])
  })

  it('change without any rule when only endpoints change', () => {
    const rulesOf = (slices: readonly SliceRecord[]) =>
      entriesOf(balanced, slices, view()).filter((entry) => entry.kind === 'rules')
    expect(rulesOf([pods])).toEqual(rulesOf([slice([endpoint('10.180.0.7', 'here'), endpoint('10.180.2.9')])]))
  })
})

describe('portals', () => {
  it('lead the cluster IP to the listener, from pods and from the node', () => {
    const text = textOf(entriesOf(service(), [pods], view()))
    const rule = '-d 172.30.0.41 -p tcp -m tcp --dport 80 -j DNAT --to-destination 192.168.0.2:40001'
    expect(rules(text, 'KUBE-PORTALS-CONTAINER')).toEqual([rule])
    expect(rules(text, 'KUBE-PORTALS-HOST')).toEqual([rule])
    expect(rules(text, 'KUBE-PORTALS-FILTER')).toEqual(['-d 172.30.0.41 -j REJECT'])
    expect(rules(text, 'KUBE-NODEPORT-NON-LOCAL')).toEqual([
      '-d 192.168.0.2 -p tcp -m tcp --dport 40001 -m conntrack --ctstate NEW -m conntrack --ctstate DNAT -j ACCEPT',
      '-d 192.168.0.2 -p tcp -m tcp --dport 40001 -m conntrack --ctstate NEW -j REJECT',
    ])
  })

  it('redirect where no address of the node is known', () => {
    const text = compose({
      texts: ['-A KUBE-PORTALS-HOST -d 172.30.0.41 <a>\n'],
      opened: () => ({ protocol: 'tcp', port: 40_001 }),
      listeners: [],
      host: undefined,
      nodePorts: new Set(),
    })
    expect(rules(text, 'KUBE-PORTALS-HOST')).toEqual(['-d 172.30.0.41 -j REDIRECT --to-ports 40001'])
  })

  it('keep externalTrafficPolicy Local, and let the node and its pods reach everybody', () => {
    const text = textOf(entriesOf(balanced, [pods], view()))
    const [cluster, local] = [
      '-j DNAT --to-destination 192.168.0.2:40001',
      '-j DNAT --to-destination 192.168.0.2:40002',
    ]
    const to = '-d 1.2.3.4 -p tcp -m tcp --dport 80'
    expect(rules(text, 'KUBE-PORTALS-CONTAINER').slice(1)).toEqual([
      `-s 10.0.0.0/8 ${to} ${cluster}`,
      `-m addrtype --src-type LOCAL ${to} ${cluster}`,
      `${to} ${local}`,
    ])
    expect(rules(text, 'KUBE-PORTALS-HOST').slice(1)).toEqual([`${to} ${cluster}`])
    expect(rules(text, 'KUBE-NODEPORT-CONTAINER').at(-1)).toBe(`-d 192.168.0.2 -p tcp -m tcp --dport 30080 ${local}`)
    expect(rules(text, 'KUBE-NODEPORT-NON-LOCAL').at(-1)).toBe('-p tcp -m tcp --dport 30000 -j ACCEPT')
  })

  it('serve node ports on loopback where the configuration covers it', () => {
    const where = (nodePorts: NodeView['nodePorts']) =>
      rules(
        textOf(entriesOf(service({ type: 'NodePort', ports: [tcp(80, 'p80', 30_080)] }), [pods], view({ nodePorts }))),
        'KUBE-NODEPORT-HOST',
      )
    const rest = '-p tcp -m tcp --dport 30080 -j DNAT --to-destination 192.168.0.2:40001'
    expect(where(everyAddress)).toEqual([rest])
    expect(where({ ...everyAddress, loopback: false })).toEqual([`! -d 127.0.0.0/8 ${rest}`])
    expect(where({ all: false, addresses: ['127.0.0.1'], loopback: true, loopbackNamed: true })).toEqual([
      `-d 127.0.0.1 ${rest}`,
    ])
  })

  it('refuse without endpoints and drop without local ones', () => {
    const none = textOf(entriesOf(balanced, [], view()))
    expect(rules(none, 'KUBE-PORTALS-FILTER')).toEqual([
      '-d 172.30.0.41 -p tcp -m tcp --dport 80 -j REJECT',
      '-d 1.2.3.4 -p tcp -m tcp --dport 80 -j REJECT',
      '-d 192.168.0.2 -m addrtype --dst-type LOCAL -p tcp -m tcp --dport 30080 -j REJECT',
      '-d 172.30.0.41 -j REJECT',
    ])
    const elsewhere = textOf(entriesOf(balanced, [slice([endpoint('10.180.2.1')])], view()))
    expect(rules(elsewhere, 'KUBE-PORTALS-FILTER')[0]).toBe('-d 1.2.3.4 -p tcp -m tcp --dport 80 -j DROP')
    // What is for this very address must not be taken by a node port of the same number.
    expect(rules(elsewhere, 'KUBE-PORTALS-CONTAINER').at(-1)).toBe('-d 1.2.3.4 -p tcp -m tcp --dport 80 -j ACCEPT')
  })

  it('check source ranges by the destination that the client gave', () => {
    const ranged = { ...balanced, sourceRanges: ['203.0.113.0/25'] }
    const origin = '-p tcp -m conntrack --ctorigdst 1.2.3.4 --ctorigdstport 80'
    const filter = rules(textOf(entriesOf(ranged, [pods], view())), 'KUBE-PORTALS-FILTER')
    expect(filter.slice(0, 2)).toEqual([`-s 203.0.113.0/25 ${origin} -j RETURN`, `${origin} -j DROP`])
    const refused = rules(textOf(entriesOf(ranged, [], view())), 'KUBE-PORTALS-FILTER')
    expect(refused.slice(1, 3)).toEqual([`-s 203.0.113.0/25 ${origin} -j REJECT`, `${origin} -j DROP`])
  })

  it('leave out what leads to a listener that could not be opened', () => {
    const entries = entriesOf(service(), [pods], view()).filter((entry) => entry.kind === 'rules')
    const text = textOf(entries)
    expect(rules(text, 'KUBE-PORTALS-CONTAINER')).toEqual([])
    expect(rules(text, 'KUBE-PORTALS-FILTER')).toEqual(['-d 172.30.0.41 -j REJECT'])
  })

  it('refuse everybody, and lead to no listener, until there are listeners', () => {
    const rulesEntries = entriesOf(balanced, [pods], view()).filter((entry) => entry.kind === 'rules')
    const text = composeRefusal({
      texts: rulesEntries.map(({ digest }) => digest),
      opened: () => ({ protocol: 'tcp', port: 40_001 }),
      listeners: [{ protocol: 'tcp', port: 40_001 }],
      host: '192.168.0.2',
      nodePorts: new Set(),
    })
    expect(text).not.toContain('40001')
    expect(rules(text, 'KUBE-PORTALS-HOST')).toContainEqual(
      '-d 172.30.0.41 -p tcp -m tcp --dport 80 -j DNAT --to-destination 192.168.0.2:1',
    )
    expect(rules(text, 'KUBE-NODEPORT-NON-LOCAL')).toContainEqual(
      '-p tcp -m tcp --dport 1 -m conntrack --ctstate NEW -j REJECT',
    )
  })

  it('refuse SCTP, and keep an entry that will say so', () => {
    const sctp = service({ ports: [{ name: 'p80', protocol: 'sctp', port: 80, nodePort: 0 }] })
    const entries = entriesOf(sctp, [slice([endpoint('10.180.0.1', 'here')], { protocol: 'sctp' })], view())
    expect(entries.filter((entry) => entry.kind === 'listener').map(({ listener }) => listener.protocol)).toEqual([
      'sctp',
    ])
    expect(rules(textOf(entries), 'KUBE-PORTALS-FILTER')[0]).toBe('-d 172.30.0.41 -p sctp -m sctp --dport 80 -j REJECT')
  })

  it('let no listener be refused that has the number of a node port', () => {
    const text = textOf(entriesOf(service({ type: 'NodePort', ports: [tcp(80, 'p80', 40_001)] }), [pods], view()))
    expect(rules(text, 'KUBE-NODEPORT-NON-LOCAL').map((line) => line.split(' ').at(-1))).toEqual(['ACCEPT'])
  })

  it('drop what is for an unallocated address, after everything else', () => {
    const entries = [...base(view({ serviceCidrs: ['172.30.0.0/16'] })), ...entriesOf(service(), [pods], view())]
    expect(rules(textOf(entries), 'KUBE-PORTALS-FILTER')).toEqual([
      '-d 172.30.0.41 -j REJECT',
      '-d 172.30.0.0/16 -j DROP',
    ])
  })
})

describe('cleanup', () => {
  it('takes our chains and all jumps to them, and nothing else', () => {
    const saved = [
      '*nat',
      ':PREROUTING ACCEPT [0:0]',
      ':DOCKER - [0:0]',
      ...ownChains.nat.map((chain) => `:${chain} - [0:0]`),
      '-A PREROUTING -m comment --comment "handle ClusterIPs" -j KUBE-PORTALS-CONTAINER',
      '-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER',
      '-A KUBE-PORTALS-CONTAINER -d 172.30.0.41/32 -p tcp -j DNAT --to-destination 192.168.0.2:4',
      'COMMIT',
    ].join('\n')
    const lines = removal('nat', saved).split('\n')
    expect(lines.filter((line) => line.startsWith('-D'))).toEqual([
      '-D PREROUTING -m comment --comment "handle ClusterIPs" -j KUBE-PORTALS-CONTAINER',
    ])
    expect(lines.filter((line) => line.startsWith('-X')).length).toBe(ownChains.nat.length)
    expect(removal('nat', saved).includes('DOCKER')).toBe(false)
    expect(removal('nat', '*nat\n:DOCKER - [0:0]\nCOMMIT\n')).toBe('')
  })

  it('knows every chain that is hooked in', () => {
    expect(hooks.every(({ table, to }) => ownChains[table].includes(to))).toBe(true)
  })
})
