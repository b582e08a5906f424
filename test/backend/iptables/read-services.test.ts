// Checks that services can be read back from the rules of kube-proxy's iptables mode.

import { describe, expect, it } from 'vitest'
import { parseServices } from '../../../src/backend/iptables/read-services.ts'

describe('services read from kube-proxy’s rules', () => {
  it('has names, addresses, ports and node ports', () => {
    const text = `*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m comment --comment "default/kubernetes:https cluster IP" -m tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y
-A KUBE-SERVICES -d 10.103.193.175/32 -p tcp -m comment --comment "work/saythx-redis cluster IP" -m tcp --dport 6379 -j KUBE-SVC-SMQNAAUIAENDDGYQ
-A KUBE-SERVICES -d 203.0.113.9/32 -p tcp -m comment --comment "work/saythx-redis loadbalancer IP" -m tcp --dport 6379 -j KUBE-EXT-SMQNAAUIAENDDGYQ
-A KUBE-NODEPORTS -p tcp -m comment --comment "work/saythx-redis" -m tcp --dport 31269 -j KUBE-EXT-SMQNAAUIAENDDGYQ
COMMIT
`
    const { services, slices } = parseServices(text, 4)
    expect(
      services.map(({ key, clusterIps, loadBalancerIps, ports }) => ({ key, clusterIps, loadBalancerIps, ports })),
    ).toEqual([
      {
        key: 'default/kubernetes',
        clusterIps: ['10.96.0.1'],
        loadBalancerIps: [],
        ports: [{ name: 'https', protocol: 'tcp', port: 443, nodePort: 0 }],
      },
      {
        key: 'work/saythx-redis',
        clusterIps: ['10.103.193.175'],
        loadBalancerIps: ['203.0.113.9'],
        ports: [{ name: '', protocol: 'tcp', port: 6379, nodePort: 31269 }],
      },
    ])
    expect(slices.map(({ service }) => service)).toEqual(['default/kubernetes', 'work/saythx-redis'])
  })
})
