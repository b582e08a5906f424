// Finds the counters of endpoints in what `iptables -S -v` prints, and the endpoint of a chain in its rules. Pure.

import { isEndpointChain } from '../../iptables-kit/chains.ts'
import { chainOfRule } from '../../iptables-kit/restore-text.ts'

/** Adds the packets of each rule that translates, by chain. `lines` are whole lines. */
export function findListedCounts(lines: string, found: Map<string, number>): void {
  for (let at = lines.indexOf(translation); at >= 0; at = lines.indexOf(translation, at + 1)) {
    const start = lines.lastIndexOf('\n', at) + 1
    const counter = lines.lastIndexOf(' -c ', at)
    if (counter < start) continue
    const chain = chainOfRule(lines.slice(start, counter))
    if (isEndpointChain(chain)) found.set(chain, Number.parseInt(lines.slice(counter + ' -c '.length, at), 10))
  }
}

/** The endpoint to which the rules of a chain translate, `ip:port`; '' if there is none. */
export function findDestination(rules: readonly string[]): string {
  for (const rule of rules) {
    const match = / -j DNAT --to-destination (\S+)/.exec(rule)
    if (match !== null) return match[1] as string
  }
  return ''
}

const translation = ' -j DNAT --to-destination '
