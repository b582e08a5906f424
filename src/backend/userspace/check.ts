// Compares portals with the rules in the tables, and listeners with the sockets of this node.

import { hostPort } from '../../lib/ip.ts'
import { listListeningSockets } from '../../sys/listening-sockets.ts'
import { compareDigests, type Held, type KernelCheck, type Presence } from '../backend.ts'
import type { RuleCheck } from '../iptables-kit/rule-check.ts'
import { formatHook, hooks, type PortalTable } from './portal-chains.ts'
import { type ListenerLayout, resolveListener, tableOf } from './restore.ts'

/** The listeners of the running proxy. */
export interface OpenListeners extends Pick<ListenerLayout, 'findOpened' | 'host'> {
  /** The address that the sockets have. */
  readonly address: string
  readonly held: readonly Held[]
}

export function makeCheck(rules: RuleCheck, listeners: OpenListeners): KernelCheck {
  return {
    presence: makePartCheck(rules, listeners),
    adaptCommand(command, part) {
      const opened = part.kind === 'listener' ? listeners.findOpened(part.id) : undefined
      if (opened === undefined) return rules.adaptCommand(command)
      return `ss -Hn${opened.protocol === 'udp' ? 'u' : 't'}l src ${hostPort(listeners.address, opened.port)}`
    },
  }
}

function makePartCheck(rules: RuleCheck, listeners: OpenListeners): (part: Held) => Presence {
  const sockets = listListeningSockets()
  const byId = new Map(listeners.held.map((held) => [held.id, held]))
  return (part) => {
    if (part.kind === 'rules') return checkRules(rules, listeners, part.digest)
    if (part.kind !== 'listener') return checkHooks(rules)
    const opened = listeners.findOpened(part.id)
    const isListening = opened !== undefined && sockets.has(`${opened.protocol} ${listeners.address} ${opened.port}`)
    return isListening ? compareDigests(part, byId.get(part.id)) : 'missing'
  }
}

/** A rule whose listener is not open is not written. */
function checkRules(rules: RuleCheck, listeners: OpenListeners, text: string): Presence {
  const lines = text.split('\n').filter((line) => line !== '')
  const resolved = lines.map((line) => resolveListener(line, listeners) ?? line)
  const states = (['nat', 'filter'] as const).flatMap((table) => {
    const own = resolved.filter((line) => tableOf(line) === table)
    return own.length === 0 ? [] : [rules.compareRules(table, own)]
  })
  return states.find((state) => state !== states[0]) === undefined ? (states[0] ?? 'present') : 'differs'
}

/** The hooks from the built-in chains belong to the node, not to a service. */
function checkHooks(rules: RuleCheck): Presence {
  const states = (['nat', 'filter'] satisfies PortalTable[]).map((table) =>
    rules.compareRules(table, hooks.filter((hook) => hook.table === table).map(formatHook)),
  )
  return states.find((state) => state !== 'present') ?? 'present'
}
