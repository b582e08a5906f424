// Turns the rules that lead to listeners into rules by which the kernel itself translates to endpoints. A process that ends leaves them, so
// that clients are served until the next one has written its own. Pure.

import { chains, commentMatch } from './portal-chains.ts'

/** More endpoints of a listener are left out: for the seconds between two processes some are enough, and each is a rule per frontend. */
const maxEndpoints = 16

/** `texts` are the rules of all entries, in which `<id>` stands for a listener; `endpointsOf` returns the endpoints of one as `ip:port`. */
export function translateDirectly(
  texts: readonly string[],
  endpointsOf: (listener: string) => readonly string[],
): readonly string[] {
  const masquerades = new Set<string>()
  const translated = texts.map((text) => {
    const lines = text.split('\n').filter((line) => line !== '')
    return lines.flatMap((line) => translateLine(line, endpointsOf, masquerades)).join('\n')
  })
  return [...translated, [...masquerades].join('\n')]
}

function translateLine(
  line: string,
  endpointsOf: (listener: string) => readonly string[],
  masquerades: Set<string>,
): readonly string[] {
  const start = line.lastIndexOf('<')
  if (start < 0) return [line]
  const endpoints = [...new Set(endpointsOf(line.slice(start + 1, -1)))].slice(0, maxEndpoints)
  const protocol = / -p (\w+) /.exec(line)?.[1] as string
  for (const endpoint of endpoints) masquerades.add(masquerade(endpoint, protocol))
  return endpoints.map((endpoint, index) => {
    const left = endpoints.length - index
    const chance = left > 1 ? `-m statistic --mode random --probability ${(1 / left).toFixed(10)} ` : ''
    return `${line.slice(0, start)}${chance}-j DNAT --to-destination ${endpoint}`
  })
}

/** Endpoints see the node as the client, as they do when this process relays, and answer to it. */
function masquerade(endpoint: string, protocol: string): string {
  const split = endpoint.lastIndexOf(':')
  const [ip, port] = [endpoint.slice(0, split).replace(/[[\]]/g, ''), endpoint.slice(split + 1)]
  const to = `-d ${ip} -p ${protocol} -m ${protocol} --dport ${port} -m conntrack --ctstate DNAT`
  return `-A ${chains.postrouting} ${to} ${commentMatch('no process relays')} -j MASQUERADE`
}
