// Reads the metrics of the process that kube-proxy's client library has beyond those in runtime-metrics.ts. Each file is read at each scrape.

import { readFileSync } from 'node:fs'
import type { MetricsRegistry } from '../registry/metrics-registry.ts'

/** What Go prints for a limit that is not set: 2^64 - 1 as a floating-point number. */
const unlimited = 2 ** 64

export function readProcessMetrics(registry: MetricsRegistry, read: (file: string) => string = readProcFile): void {
  const { received, sent } = parseOctets(read('net/netstat'))
  registry.set('process_network_receive_bytes_total', {}, received)
  registry.set('process_network_transmit_bytes_total', {}, sent)
  registry.set('process_virtual_memory_max_bytes', {}, parseMaxAddressSpace(read('limits')))
}

/** Returns '' where the file cannot be read: not on Linux, or without /proc. */
export function readProcFile(file: string): string {
  try {
    return readFileSync(`/proc/self/${file}`, 'utf8')
  } catch {
    return ''
  }
}

/** The bytes that the network namespace of the process has received and sent in IP packets; 0 if they are unknown. */
function parseOctets(netstat: string): { readonly received: number; readonly sent: number } {
  const [names = [], values = []] = netstat
    .split('\n')
    .filter((line) => line.startsWith('IpExt:'))
    .map((line) => line.split(' '))
  const find = (name: string) => Number(values[names.indexOf(name)] ?? 0) || 0
  return { received: find('InOctets'), sent: find('OutOctets') }
}

function parseMaxAddressSpace(limits: string): number {
  const soft = /^Max address space +(\S+)/m.exec(limits)?.[1]
  return soft === undefined || soft === 'unlimited' ? unlimited : Number(soft)
}
