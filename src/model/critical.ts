// Finds the services that a node cannot work without, so that a cold start programs them before all others. Pure.

import type { ServiceRecord } from './types.ts'

const dnsNames = new Set(['kube-system/kube-dns', 'kube-system/coredns'])

/** True for the API server's service, and for cluster DNS however it is installed: by its usual names, or by its port. */
export function isCritical(service: ServiceRecord): boolean {
  if (service.key === 'default/kubernetes' || dnsNames.has(service.key)) return true
  if (!service.key.startsWith('kube-system/')) return false
  return service.ports.some((port) => port.port === 53 || port.name === 'dns' || port.name === 'dns-tcp')
}
