// What the endpoints of a service do now: connections that the kernel tracks, and what is counted, in words. Pure.

import type { PageConnections } from '../src/http/admin-page.ts'
import type { EndpointTraffic, Traffic } from '../src/http/admin-traffic.ts'
import { formatBytes, formatRate, plural } from './words.ts'

export interface EndpointActivity {
  isBusy(address: string): boolean
  describe(address: string): string
}

export function readActivity(
  name: string,
  connections: PageConnections | undefined,
  traffic: Traffic | undefined,
): EndpointActivity {
  const open = new Map<string, number>()
  for (const { service, endpoint, count } of connections?.counts ?? []) {
    if (service === name || service.startsWith(`${name}:`)) open.set(endpoint, (open.get(endpoint) ?? 0) + count)
  }
  const counted = new Map<string, EndpointTraffic>()
  for (const one of (traffic?.ports ?? []).flatMap(({ endpoints }) => endpoints ?? [])) counted.set(one.address, one)
  return {
    isBusy: (address) => (open.get(address) ?? 0) > 0 || (counted.get(address)?.connectionsPerSecond ?? 0) > 0,
    describe: (address) => describe(open.get(address) ?? 0, counted.get(address)),
  }
}

function describe(open: number, counted: EndpointTraffic | undefined): string {
  if (counted === undefined) return plural(open, 'connection')
  const { connections, connectionsPerSecond, bytesIn, bytesOut } = counted
  const rate =
    connectionsPerSecond === null || connectionsPerSecond === 0 ? '' : `, ${formatRate(connectionsPerSecond)}/s`
  const bytes = bytesIn === null && bytesOut === null ? '' : `, ${formatBytes((bytesIn ?? 0) + (bytesOut ?? 0))}`
  return `${plural(connections, 'connection')}${rate}${bytes}${open > 0 ? `, ${open} open` : ''}`
}
