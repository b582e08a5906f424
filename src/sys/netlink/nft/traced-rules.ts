// Looks up the rules that a trace names by their handles: their comments, and what they do. Each chain is read once.

import type { AttributeReader, MessageReader } from '../message.ts'
import { NFTA_EXPR, NFTA_RULE } from './attributes.ts'
import { Nftables } from './nftables.ts'
import { readComment } from './userdata.ts'

/** The place of a rule, as a trace names it. */
export interface RulePlace {
  /** `ip kube-proxy`. */
  readonly table: string
  readonly chain: string
  readonly handle: number
}

export interface RuleDetails {
  /** '' if there is none. */
  readonly comment: string
  /** The kernel's names of its expressions, and the names of iptables targets. */
  readonly actions: readonly string[]
}

const families: Readonly<Record<string, number>> = { inet: 1, ip: 2, netdev: 5, bridge: 7, ip6: 10 }
const NFTA_RULE_HANDLE = 3
const NFTA_TARGET_NAME = 1
/** Chains whose rules are kept. Handles are never used again, so nothing that is kept becomes wrong. */
const maxChains = 200

export class TracedRules {
  readonly #nft = new Nftables()
  readonly #chains = new Map<string, Promise<ReadonlyMap<number, RuleDetails>>>()

  /** Undefined if the rule is gone. */
  async find({ table, chain, handle }: RulePlace): Promise<RuleDetails | undefined> {
    const known = (await this.#read(table, chain)).get(handle)
    if (known !== undefined || handle === 0) return known
    // The chain may have got the rule after it was read.
    this.#chains.delete(`${table} ${chain}`)
    return (await this.#read(table, chain)).get(handle)
  }

  close(): void {
    this.#nft.close()
  }

  #read(table: string, chain: string): Promise<ReadonlyMap<number, RuleDetails>> {
    const key = `${table} ${chain}`
    const known = this.#chains.get(key)
    if (known !== undefined) return known
    if (this.#chains.size >= maxChains) this.#chains.clear()
    const [family = '', name = ''] = table.split(' ')
    const found = this.#nft
      .chainRules(families[family] ?? 0, name, chain, decodeDetails)
      .then((rules) => new Map(rules.map(({ handle, ...details }) => [handle, details])))
      .catch(() => new Map<number, RuleDetails>())
    this.#chains.set(key, found)
    return found
  }
}

function decodeDetails(
  message: MessageReader,
  reader: AttributeReader,
): (RuleDetails & { readonly handle: number }) | undefined {
  let handle = 0
  let comment = ''
  const actions: string[] = []
  message.attributes(4, reader)
  while (reader.next()) {
    if (reader.type === NFTA_RULE_HANDLE) handle = reader.u64()
    else if (reader.type === NFTA_RULE.USERDATA) comment = readComment(reader.raw()) ?? ''
    else if (reader.type === NFTA_RULE.EXPRESSIONS) readActions(reader, actions)
  }
  return reader.error === undefined ? { handle, comment, actions } : undefined
}

function readActions(reader: AttributeReader, actions: string[]): void {
  reader.enter()
  while (reader.next()) readExpression(reader, actions)
  reader.leave()
}

function readExpression(reader: AttributeReader, actions: string[]): void {
  let name = ''
  reader.enter()
  while (reader.next()) {
    if (reader.type === NFTA_EXPR.NAME) {
      name = reader.text()
      actions.push(name)
    } else if (reader.type === NFTA_EXPR.DATA && name === 'target') actions.push(readTarget(reader))
  }
  reader.leave()
}

function readTarget(reader: AttributeReader): string {
  let name = ''
  reader.enter()
  while (reader.next()) if (reader.type === NFTA_TARGET_NAME) name = reader.text()
  reader.leave()
  return name
}
