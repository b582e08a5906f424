// All iptables rules of one service port as one text, and its parts. Nothing else knows where one part ends and the next begins. Pure.
//
// There is one text per service port, so that writing everything is copying texts: one entry per chain was 70,000 entries for 10,000
// services. The parts are, one after the other: declarations of the port's own chains; its rules in the shared chains of nat; the rules
// of its own chains, those about endpoints without comments, as large clusters get them; its rules in filter; and a remark that is not
// written. Two texts are equal if and only if nothing has changed, so the text is also the entry's digest.

import type { SetHash } from '../../lib/set-hash.ts'
import { isEndpointChain } from '../iptables-kit/chains.ts'
import { chainOfRule, declarationTail, formatDeclarations, linesOf } from '../iptables-kit/restore-text.ts'
import type { RuleSetHash } from '../iptables-kit/rule-hash.ts'

export interface PortRules {
  /** Own chains, in the order in which they are declared. */
  readonly chains: readonly string[]
  /** Rules in the shared chains of nat. */
  readonly shared: readonly string[]
  /** Number of shared rules that count packets for localhost, which not every kernel can do. */
  readonly counted: number
  /** Rules in own chains, in kube-proxy's order, those about endpoints without comments. */
  readonly own: readonly string[]
  readonly filter: readonly string[]
  /** Number of endpoints that are not reached from here. */
  readonly unreached: number
}

export class PortText {
  readonly text: string
  /** Number of own chains. */
  readonly chainCount: number
  readonly sharedCount: number
  /** Number of shared rules that count packets for localhost. */
  readonly countedCount: number
  readonly ownCount: number
  readonly filterCount: number
  readonly #declarationsEnd: number
  readonly #sharedEnd: number
  readonly #ownEnd: number
  readonly #filterEnd: number

  constructor({ chains, shared, counted, own, filter, unreached }: PortRules) {
    let text = formatDeclarations(chains)
    this.#declarationsEnd = text.length
    text += joinLines(shared)
    this.#sharedEnd = text.length
    text += joinLines(own)
    this.#ownEnd = text.length
    text += joinLines(filter)
    this.#filterEnd = text.length
    if (unreached > 0) text += `# and ${unreached} endpoints that are not reached from here\n`
    this.text = text
    this.chainCount = chains.length
    this.sharedCount = shared.length
    this.countedCount = counted
    this.ownCount = own.length
    this.filterCount = filter.length
  }

  declarations(): string {
    return this.text.slice(0, this.#declarationsEnd)
  }

  /** Rules in the shared chains of nat. */
  shared(): string {
    return this.text.slice(this.#declarationsEnd, this.#sharedEnd)
  }

  /** Rules of the own chains, without comments on endpoints. */
  own(): string {
    return this.text.slice(this.#sharedEnd, this.#ownEnd)
  }

  /** Rules of the own chains with kube-proxy's comments on endpoints: the port's name, and in jumps to them also their addresses. */
  ownWithComments(portName: string): string {
    const lines = linesOf(this.own())
    const addresses = new Map<string, string>()
    for (const line of lines) {
      const at = line.indexOf(destination)
      if (at >= 0) addresses.set(chainOfRule(line), line.slice(at + destination.length, -1))
    }
    return lines.map((line) => addComment(line, portName, addresses)).join('')
  }

  /** The chains that translate, with the endpoints to which they do. */
  *destinations(): Iterable<readonly [chain: string, endpoint: string]> {
    const { text } = this
    for (let at = text.indexOf(destination, this.#sharedEnd); at >= 0; at = text.indexOf(destination, at + 1)) {
      const chain = text.lastIndexOf('\n', at) + '\n-A '.length
      yield [text.slice(chain, text.indexOf(' ', chain)), text.slice(at + destination.length, text.indexOf('\n', at))]
    }
  }

  /** All rules in nat: `shared` followed by `own`. */
  nat(): string {
    return this.text.slice(this.#declarationsEnd, this.#ownEnd)
  }

  filter(): string {
    return this.text.slice(this.#ownEnd, this.#filterEnd)
  }

  /** Own chains. */
  chains(): readonly string[] {
    const chains: string[] = []
    for (let at = 0; at < this.#declarationsEnd; at = this.text.indexOf('\n', at) + 1) {
      chains.push(this.text.slice(at + 1, this.text.indexOf(' ', at)))
    }
    return chains
  }

  /** True if the chain is one of the own chains. */
  declares(chain: string): boolean {
    const at = this.text.indexOf(`:${chain} `)
    return at >= 0 && at < this.#declarationsEnd
  }

  /** True if the line is one of this text. */
  includes(line: string): boolean {
    return this.text.includes(line)
  }

  /** True if both texts have the same rules, whatever endpoints there are elsewhere. */
  hasSameRules(other: PortText): boolean {
    if (this.text === other.text) return true
    return this.#filterEnd === other.#filterEnd && this.text.startsWith(other.text.slice(0, other.#filterEnd))
  }

  /** Adds the names of the own chains to a checksum, or removes them. */
  hashChains(hash: SetHash, sign: 1 | -1): void {
    for (let at = 0; at < this.#declarationsEnd; ) {
      const end = this.text.indexOf('\n', at)
      hash.add(this.text, at + 1, end - declarationTail, sign)
      at = end + 1
    }
  }

  /** Adds the rules of the own chains to a checksum, or removes them. */
  hashRules(hash: RuleSetHash, sign: 1 | -1): void {
    for (let start = this.#sharedEnd; start < this.#ownEnd; ) {
      const end = this.text.indexOf('\n', start)
      hash.add(this.text, start, end, sign)
      start = end + 1
    }
  }
}

/** The rules of each chain, in their order. */
export function groupByChain(rules: string): Map<string, string> {
  const byChain = new Map<string, string>()
  for (const line of linesOf(rules)) {
    const chain = chainOfRule(line)
    byChain.set(chain, (byChain.get(chain) ?? '') + line)
  }
  return byChain
}

export const joinLines = (lines: readonly string[]): string => (lines.length === 0 ? '' : `${lines.join('\n')}\n`)

/** What precedes the endpoint in a rule that translates. */
export const destination = ' --to-destination '

function addComment(line: string, portName: string, addresses: ReadonlyMap<string, string>): string {
  const chain = chainOfRule(line)
  const rest = line.slice('-A '.length + chain.length)
  if (isEndpointChain(chain)) return `-A ${chain} -m comment --comment ${portName}${rest}`
  const address = addresses.get(line.slice(line.lastIndexOf(' ') + 1, -1))
  return address === undefined ? line : `-A ${chain} -m comment --comment "${portName} -> ${address}"${rest}`
}
