// The names of what counts in our table: chains of endpoints with affinity, and counters that keep what removed slots had counted. Pure.

import { hostPort } from '../../../lib/ip.ts'
import { hash32 } from '../../names.ts'

/** The chain of an endpoint with affinity: `endpoint-ABC-ns/name/tcp/port__10.0.0.1/80`. */
export const isEndpointChain = (name: string): boolean => name.startsWith('endpoint-')

export const isCarried = (name: string): boolean => name.startsWith('carried-')

/** `carried-ABC-10.0.0.1/80`, or `carried-ABC` for all endpoints that are gone. The comment of the counter names the service port. */
export function carriedName(port: string, endpoint: string): string {
  const base = `carried-${hash32(port, 8)}`
  if (endpoint === '') return base
  const colon = endpoint.lastIndexOf(':')
  const ip = endpoint.slice(0, colon).replace(/[[\]]/g, '').replaceAll(':', '.')
  return `${base}-${ip}/${endpoint.slice(colon + 1)}`
}

/** The endpoint in the name of a counter or chain, as `ip:port`; '' if there is none, or if the name was cut. */
export function endpointOf(name: string, family: 4 | 6): string {
  const text = isCarried(name) ? name.slice('carried-'.length + 9) : name.slice(name.lastIndexOf('__') + 2)
  const match = /^([0-9a-f.]+)\/(\d+)$/.exec(text)
  if (match === null) return ''
  const ip = match[1] as string
  return hostPort(family === 6 ? ip.replaceAll('.', ':') : ip, Number(match[2]))
}
