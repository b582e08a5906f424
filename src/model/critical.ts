// Finds the services that a node cannot work without, so that a cold start programs them before all others. Pure.

import type { ServiceRecord } from './types.ts'

/** True for the API server's service, and for cluster DNS however it is installed. */
export function isCritical(service: ServiceRecord): boolean {
  if (service.key === 'default/kubernetes') return true
  if (!service.key.startsWith('kube-system/')) return false
  return service.ports.some((port) => port.port === 53 || port.name === 'dns' || port.name === 'dns-tcp')
}
