// Parses the names by which people call a service: kubectl's, DNS names, or NAMESPACE/NAME. Pure.

import { ProxyError } from '../lib/errors.ts'

export interface ServiceName {
  /** The services that the text may mean, the likeliest first: `svc/web` may also be service web in a namespace svc. */
  readonly keys: readonly string[]
  /** The name or number of a port; '' for all ports. */
  readonly port: string
}

const forms = 'ADDRESS:PORT, :NODEPORT, [NAMESPACE/]NAME[:PORT], svc/NAME[:PORT] or NAME.NAMESPACE.svc[:PORT]'
const label = '[a-z0-9](?:[a-z0-9-]*[a-z0-9])?'
const slashed = new RegExp(`^(?:(${label})/)?(?:(${label})/)?(${label})(?::([A-Za-z0-9-]+))?$`)
const dotted = new RegExp(`^(${label})\\.(${label})(?:\\.svc(?:\\.[a-z0-9.-]+)?)?\\.?(?::([A-Za-z0-9-]+))?$`)
const kinds = new Set(['svc', 'service', 'services'])

/** Throws a ProxyError 'question' if the text has none of these forms. */
export function parseServiceName(text: string, namespace = 'default'): ServiceName {
  const byDns = dotted.exec(text)
  if (byDns !== null) return { keys: [`${byDns[2]}/${byDns[1]}`], port: byDns[3] ?? '' }
  const match = slashed.exec(text)
  if (match === null) throw new ProxyError('question', `"${text}" is none of ${forms}`)
  const [, first, second, name = '', port = ''] = match
  if (second !== undefined) {
    if (kinds.has(first ?? '')) return { keys: [`${second}/${name}`], port }
    throw new ProxyError('question', `"${text}" is none of ${forms}`)
  }
  if (first === undefined) return { keys: [`${namespace}/${name}`], port }
  return { keys: kinds.has(first) ? [`${namespace}/${name}`, `${first}/${name}`] : [`${first}/${name}`], port }
}

/** Adds the namespace to a name that has none; any other text is returned unchanged. */
export function addNamespace(text: string, namespace: string): string {
  const match = /^(?:(?:svc|service|services)\/)?([a-z][a-z0-9-]*(?::[A-Za-z0-9-]+)?(?:\/(?:tcp|udp|sctp))?)$/i.exec(
    text,
  )
  return match === null ? text : `${namespace}/${match[1]}`
}
