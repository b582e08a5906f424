import { expect, it } from 'vitest'
import { isProxyChain } from '../../../src/backend/iptables-kit/held-flavours.ts'

it('distinguishes chains of a proxy from chains of kubelet and of others', () => {
  for (const name of [
    'nat KUBE-SERVICES',
    'nat KUBE-SEP-AAAA',
    'filter KUBE-PORTALS-HOST',
    'mangle KUBE-PROXY-CANARY',
  ]) {
    expect(isProxyChain(name)).toBe(true)
  }
  for (const name of ['mangle KUBE-KUBELET-CANARY', 'nat DOCKER', 'filter KUBE-FIREWALL', 'kube-proxy KUBE-SERVICES']) {
    expect(isProxyChain(name)).toBe(false)
  }
})
