// Checks where the API server is taken to be, and that a service CIDR which contains one of its addresses is reported once.

import { describe, expect, it } from 'vitest'
import { ApiServerAddresses } from '../../../src/daemon/node/api-server-addresses.ts'
import { CidrOverlaps } from '../../../src/daemon/node/cidr-overlaps.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import type { Problem, ServiceRecord, SliceRecord, SocketAddress } from '../../../src/model/types.ts'
import { endpoint, service, slice, view } from '../../support/builders.ts'

function sink<R>() {
  const calls: string[] = []
  return {
    calls,
    put: (key: string, _record: R) => void calls.push(`put ${key}`),
    drop: (key: string) => void calls.push(`drop ${key}`),
    synced: () => void calls.push('synced'),
    problem: (_: Problem) => void calls.push('problem'),
  }
}

const servers = (...ips: string[]) =>
  slice(
    ips.map((ip) => endpoint(ip, '', 'unready')),
    { key: 'default/kubernetes', service: 'default/kubernetes', port: 6443 },
  )

describe('ApiServerAddresses', () => {
  function open() {
    const addresses = new ApiServerAddresses()
    const slices = sink<SliceRecord>()
    const services = sink<ServiceRecord>()
    let list: readonly SocketAddress[] = []
    addresses.watch((given) => {
      list = given
    })
    const reader = { slices: addresses.readSlices(slices), services: addresses.readServices(services) }
    return { addresses, reader, slices, services, texts: () => list.map(({ ip, port }) => `${ip}:${port}`) }
  }

  it('are those that the client dials and the endpoints of default/kubernetes, also when they move', () => {
    const { addresses, reader, slices, texts } = open()
    addresses.setDialed([{ ip: '192.0.2.9', port: 6443 }])
    reader.slices.put('default/kubernetes', servers('192.0.2.9', '192.0.2.10'))
    reader.slices.put('ns/other', slice([endpoint('10.0.0.1')], { key: 'ns/other', service: 'ns/other' }))
    expect(texts()).toEqual(['192.0.2.9:6443', '192.0.2.10:6443'])
    reader.slices.put('default/kubernetes', servers('192.0.2.11'))
    expect(texts()).toEqual(['192.0.2.9:6443', '192.0.2.11:6443'])
    reader.slices.drop('default/kubernetes')
    expect(texts()).toEqual(['192.0.2.9:6443'])
    reader.slices.synced()
    expect(slices.calls).toEqual([
      'put default/kubernetes',
      'put ns/other',
      'put default/kubernetes',
      'drop default/kubernetes',
      'synced',
    ])
  })

  it('do not contain addresses of default/kubernetes itself: these must be translated', () => {
    const { addresses, reader, services, texts } = open()
    addresses.setDialed([{ ip: '10.96.0.1', port: 443 }])
    expect(texts()).toEqual(['10.96.0.1:443'])
    reader.services.put('default/kubernetes', service({ key: 'default/kubernetes', clusterIps: ['10.96.0.1'] }))
    expect(texts()).toEqual([])
    reader.services.drop('default/kubernetes')
    expect(texts()).toEqual(['10.96.0.1:443'])
    expect(services.calls).toEqual(['put default/kubernetes', 'drop default/kubernetes'])
  })
})

describe('CidrOverlaps', () => {
  it('reports each overlap once, and again after it ended', () => {
    const notes: string[] = []
    const overlaps = new CidrOverlaps({
      node: 'here',
      log: silentLogger,
      recorder: { record: ({ reason, note, regarding }) => void notes.push(`${regarding.kind} ${reason}: ${note}`) },
    })
    const covering = view({ serviceCidrs: ['192.168.0.0/16'], apiServers: [{ ip: '192.168.9.9', port: 6443 }] })
    overlaps.check(covering, ['127.0.0.1', '192.168.0.2'])
    overlaps.check(covering, ['127.0.0.1', '192.168.0.2'])
    const node =
      'Node ServiceCIDROverlap: the service CIDR 192.168.0.0/16 contains the address 192.168.0.2 of this node'
    const server = 'Node ServiceCIDROverlap: the service CIDR 192.168.0.0/16 contains the API server 192.168.9.9:6443'
    expect(notes).toEqual([node, server])
    overlaps.check(view(), [])
    overlaps.check(covering, [])
    expect(notes).toEqual([node, server, node, server])
  })
})
