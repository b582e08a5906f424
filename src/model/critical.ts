// Which services a node cannot do without, so that they are programmed before all others on a cold start.

import type { ServiceRecord } from './types.ts'

/** The API server's service, and cluster DNS however it is installed. */
export function critical(service: ServiceRecord): boolean {
  if (service.key === 'default/kubernetes') return true
  if (!service.key.startsWith('kube-system/')) return false
  return service.ports.some((port) => port.port === 53 || port.name === 'dns' || port.name === 'dns-tcp')
}
