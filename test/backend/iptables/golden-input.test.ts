// The six services of the full example: the whole text of iptables-restore, line for line as kube-proxy 1.36.4 writes it.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { endpoint, service, slice, tcp } from '../../support/builders.ts'
import { WriterHarness } from './writer-harness.ts'

const golden = readFileSync(join(import.meta.dirname, 'golden-input.txt'), 'utf8')

/** The fixture is written with the mark as upstream's tests have it; kube-proxy itself prints eight digits. */
const shortMark = (text: string): string => text.replaceAll('0x00004000', '0x4000')

it('writes the full example line for line', async () => {
  const harness = new WriterHarness()
  const of = (n: number, node: string, ...ips: string[]) =>
    slice(
      ips.map((ip) => endpoint(ip, node)),
      { key: `ns${n}/svc${n}-a`, service: `ns${n}/svc${n}` },
    )
  harness.put(service({ key: 'ns1/svc1', clusterIps: ['172.30.0.41'] }), of(1, 'remote', '10.180.0.1'))
  harness.put(
    service({
      key: 'ns2/svc2',
      type: 'LoadBalancer',
      clusterIps: ['172.30.0.42'],
      ports: [tcp(80, 'p80', 3001)],
      externalIps: ['192.168.99.22'],
      loadBalancerIps: ['1.2.3.4'],
      externalPolicy: 'Local',
      healthCheckNodePort: 30000,
    }),
    of(2, 'remote', '10.180.0.2'),
  )
  harness.put(
    service({ key: 'ns3/svc3', type: 'NodePort', clusterIps: ['172.30.0.43'], ports: [tcp(80, 'p80', 3003)] }),
    of(3, 'remote', '10.180.0.3'),
  )
  harness.put(
    service({ key: 'ns4/svc4', clusterIps: ['172.30.0.44'], externalIps: ['192.168.99.33'] }),
    of(4, 'remote', '10.180.0.5', '10.180.0.4'),
  )
  harness.put(
    service({
      key: 'ns5/svc5',
      type: 'LoadBalancer',
      clusterIps: ['172.30.0.45'],
      ports: [tcp(80, 'p80', 3002)],
      loadBalancerIps: ['5.6.7.8'],
      sourceRanges: ['203.0.113.0/25'],
      affinitySeconds: 10800,
    }),
    of(5, 'remote', '10.180.0.3'),
  )
  harness.put(service({ key: 'ns6/svc6', clusterIps: ['172.30.0.46'] }))

  await harness.sync()
  expect(harness.texts).toHaveLength(1)
  expect(shortMark(harness.text)).toBe(golden)
})
