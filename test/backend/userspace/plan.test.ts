// Plans service ports as listeners and as iptables rules, with ports filled in as the target does.

import { describe, expect, it } from 'vitest'
import { base } from '../../../src/backend/userspace/base.ts'
import type { UserspaceEntry } from '../../../src/backend/userspace/entries.ts'
import { plan } from '../../../src/backend/userspace/plan.ts'
import { compose, composeRefusal } from '../../../src/backend/userspace/restore.ts'
import type { NodeView, ServiceRecord, SliceRecord } from '../../../src/model/types.ts'
import { endpoint, everyAddress, service, slice, tcp, view } from '../../support/builders.ts'
import { resolve } from '../../support/resolve.ts'

function entriesOf(record: ServiceRecord, slices: readonly SliceRecord[], node: NodeView): readonly UserspaceEntry[] {
  return resolve(record, slices, node).flatMap((port) => plan(port, node))
}

/** Composes the rules. Listeners get the ports 40001, 40002, … in order. */
function textOf(entries: readonly UserspaceEntry[], host: string | undefined = '192.168.0.2'): string {
  const listeners = entries.filter((entry) => entry.kind === 'listener')
  const findOpened = (id: string) => {
    const at = listeners.findIndex((entry) => entry.id === id)
    const protocol = listeners[at]?.listener.protocol
    return protocol === undefined || protocol === 'sctp' ? undefined : { protocol, port: 40_001 + at }
  }
  const rules = entries.filter((entry) => entry.kind === 'rules').sort((a, b) => (a.order < b.order ? -1 : 1))
  return compose(
    rules.map(({ digest }) => digest),
    {
      findOpened,
      listeners: listeners.flatMap(({ id }) => findOpened(id) ?? []),
      host,
      nodePorts: new Set(rules.flatMap(({ nodePorts }) => nodePorts)),
    },
  )
}

/** The rules of a chain, without the name of the chain and without comments. */
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
  it('are one per set of endpoints that is in use', () => {
    const listeners = entriesOf(balanced, [pods], view()).filter((entry) => entry.kind === 'listener')
    expect(listeners.map(({ id, listener }) => [id, listener.endpoints])).toEqual([
      ['ns1/svc1:p80/tcp cluster', ['10.180.0.1:80', '10.180.2.1:80']],
      ['ns1/svc1:p80/tcp local', ['10.180.0.1:80']],
    ])
    const plain = entriesOf(service(), [pods], view()).filter((entry) => entry.kind === 'listener')
    expect(plain.map(({ id }) => id)).toEqual(['ns1/svc1:p80/tcp cluster'])
  })

  it('change without a change of rules when only endpoints change', () => {
    const rulesOf = (slices: readonly SliceRecord[]) =>
      entriesOf(balanced, slices, view()).filter((entry) => entry.kind === 'rules')
    expect(rulesOf([pods])).toEqual(rulesOf([slice([endpoint('10.180.0.7', 'here'), endpoint('10.180.2.9')])]))
  })
})

describe('rules', () => {
  it('redirect the cluster IP to the listener, from pods and from the node', () => {
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

  it('redirect to any address where no address of the node is known', () => {
    const text = compose(['-A KUBE-PORTALS-HOST -d 172.30.0.41 <a>\n'], {
      findOpened: () => ({ protocol: 'tcp', port: 40_001 }),
      listeners: [],
      host: undefined,
      nodePorts: new Set(),
    })
    expect(rules(text, 'KUBE-PORTALS-HOST')).toEqual(['-d 172.30.0.41 -j REDIRECT --to-ports 40001'])
  })

  it('implement externalTrafficPolicy Local, and let the node and its pods reach all endpoints', () => {
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
    // A node port of the same number must not redirect what is for this address.
    expect(rules(elsewhere, 'KUBE-PORTALS-CONTAINER').at(-1)).toBe('-d 1.2.3.4 -p tcp -m tcp --dport 80 -j ACCEPT')
  })

  it('check source ranges against the destination that the client used', () => {
    const ranged = { ...balanced, sourceRanges: ['203.0.113.0/25'] }
    const origin = '-p tcp -m conntrack --ctorigdst 1.2.3.4 --ctorigdstport 80'
    const filter = rules(textOf(entriesOf(ranged, [pods], view())), 'KUBE-PORTALS-FILTER')
    expect(filter.slice(0, 2)).toEqual([`-s 203.0.113.0/25 ${origin} -j RETURN`, `${origin} -j DROP`])
    const refused = rules(textOf(entriesOf(ranged, [], view())), 'KUBE-PORTALS-FILTER')
    expect(refused.slice(1, 3)).toEqual([`-s 203.0.113.0/25 ${origin} -j REJECT`, `${origin} -j DROP`])
  })

  it('leave out redirections to a listener that could not be opened', () => {
    const entries = entriesOf(service(), [pods], view()).filter((entry) => entry.kind === 'rules')
    const text = textOf(entries)
    expect(rules(text, 'KUBE-PORTALS-CONTAINER')).toEqual([])
    expect(rules(text, 'KUBE-PORTALS-FILTER')).toEqual(['-d 172.30.0.41 -j REJECT'])
  })

  it('refuse all clients and redirect to no listener until there are listeners', () => {
    const rulesEntries = entriesOf(balanced, [pods], view()).filter((entry) => entry.kind === 'rules')
    const texts = rulesEntries.map(({ digest }) => digest)
    const text = composeRefusal(texts, {
      findOpened: () => ({ protocol: 'tcp', port: 40_001 }),
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

  it('refuse SCTP, and plan a listener that the target refuses, so that users see it', () => {
    const sctp = service({ ports: [{ name: 'p80', protocol: 'sctp', port: 80, nodePort: 0 }] })
    const entries = entriesOf(sctp, [slice([endpoint('10.180.0.1', 'here')], { protocol: 'sctp' })], view())
    expect(entries.filter((entry) => entry.kind === 'listener').map(({ listener }) => listener.protocol)).toEqual([
      'sctp',
    ])
    expect(rules(textOf(entries), 'KUBE-PORTALS-FILTER')[0]).toBe('-d 172.30.0.41 -p sctp -m sctp --dport 80 -j REJECT')
  })

  it('refuse direct clients of a listener, but not if its port has the number of a node port', () => {
    const text = textOf(entriesOf(service({ type: 'NodePort', ports: [tcp(80, 'p80', 40_001)] }), [pods], view()))
    expect(rules(text, 'KUBE-NODEPORT-NON-LOCAL').map((line) => line.split(' ').at(-1))).toEqual(['ACCEPT'])
  })

  it('drop what is for an unallocated address, after all other rules', () => {
    const entries = [...base(view({ serviceCidrs: ['172.30.0.0/16'] })), ...entriesOf(service(), [pods], view())]
    expect(rules(textOf(entries), 'KUBE-PORTALS-FILTER')).toEqual([
      '-d 172.30.0.41 -j REJECT',
      '-d 172.30.0.0/16 -m addrtype ! --dst-type LOCAL -j DROP',
    ])
  })

  it('refuse and drop nothing that is for the API server', () => {
    const node = view({ serviceCidrs: ['172.30.0.0/16'], apiServers: [{ ip: '172.30.0.41', port: 6443 }] })
    expect(rules(textOf([...base(node), ...entriesOf(service(), [pods], node)]), 'KUBE-PORTALS-FILTER')).toEqual([
      '-d 172.30.0.41 -p tcp -m tcp --dport 6443 -j RETURN',
      '-d 172.30.0.41 -j REJECT',
      '-d 172.30.0.0/16 -m addrtype ! --dst-type LOCAL -j DROP',
    ])
  })
})
