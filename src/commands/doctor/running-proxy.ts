// Asks the proxy that runs on this machine, and reports failed syncs, quarantine, conflicts and rules that other programs changed.

import type { Mode } from '../../backend/backend.ts'
import { type Finding, ok } from '../../backend/finding.ts'
import type { Summary } from '../../http/admin.ts'
import { AdminClient, findSocket } from '../../http/admin-client.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { count } from '../../lib/plural.ts'
import { formatAge } from '../../lib/time.ts'
import { describeHolder } from '../../model/conflicts.ts'

interface ExaminedProxy {
  /** Undefined if no proxy answers. */
  readonly mode: Mode | undefined
  /** 0 if no proxy answers. */
  readonly pid: number
  readonly findings: readonly Finding[]
}

export async function examineProxy(socket: string): Promise<ExaminedProxy> {
  try {
    const path = await findSocket(socket, process.env)
    const summary = await new AdminClient(path).summary()
    return { mode: summary.mode, pid: summary.pid, findings: checks.flatMap((check) => check(summary) ?? []) }
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    return { mode: undefined, pid: 0, findings: [noAnswer(error, socket)] }
  }
}

function noAnswer(error: ProxyError, socket: string): Finding {
  const about = 'running proxy'
  if (error.code === 'no-proxy') return ok(about, 'none on this machine')
  const found = describeError(error)
  if (error.code === 'several' && socket === '') {
    return {
      level: 'warning',
      about,
      found,
      meaning: 'None of them was asked.',
      todo: 'Name one with --socket. If two proxies serve this node, stop one: each undoes the work of the other.',
    }
  }
  return {
    level: 'warning',
    about,
    found,
    meaning: 'There is a socket, but no proxy answers on it as expected.',
    todo: 'Check that the proxy runs and that you are its user (root).',
  }
}

/** Each returns what it has to report, or undefined. */
const checks: readonly ((summary: Summary) => Finding | undefined)[] = [
  checkLastSync,
  checkQuarantine,
  checkConflicts,
  checkDrift,
]

function checkLastSync({ node, families, mode, services, startedAt }: Summary): Finding {
  const about = `running proxy (${node})`
  const failed = families.find(({ lastSync }) => lastSync?.ok === false)
  if (failed === undefined) {
    return ok(about, `mode ${mode}, ${count(services, 'service')}, up ${formatAge(Date.now() - Date.parse(startedAt))}`)
  }
  return {
    level: 'problem',
    about,
    found: `last sync failed: ${failed.lastSync?.error}`,
    meaning: 'The kernel has the state of the last sync that succeeded; later changes are missing.',
    todo: 'The error names the part of the kernel or the program that refused. The proxy tries again by itself.',
  }
}

function checkQuarantine({ quarantined }: Summary): Finding | undefined {
  if (quarantined.length === 0) return undefined
  return {
    level: 'problem',
    about: 'quarantine',
    found: joinOnce(quarantined.map(({ service, error }) => `${service}: ${error}`)),
    meaning: 'These services cannot be programmed; all other services work.',
    todo: 'sluice status SERVICE shows the entries. Correct the object, or report a bug.',
  }
}

function checkConflicts({ conflicts }: Summary): Finding | undefined {
  if (conflicts.length === 0) return undefined
  return {
    level: 'warning',
    about: 'conflicts',
    found: joinOnce(conflicts.map((one) => `${one.frontend} of ${one.loser} ${describeHolder(one)}`)),
    meaning: 'Services claim addresses that they do not get.',
    todo: 'Give them other addresses or node ports.',
  }
}

/** Both IP families often have the same problem. */
const joinOnce = (texts: readonly string[]): string => [...new Set(texts)].join('; ')

function checkDrift({ counters }: Summary): Finding | undefined {
  if (counters.drifts === 0) return undefined
  return {
    level: 'warning',
    about: 'rules changed by others',
    found: count(counters.drifts, 'time'),
    meaning: 'Another program changes or flushes the rules of the proxy, which writes them again each time.',
    todo: 'The log and the Events of the Node name the program: configure it so that it does not flush all rules.',
  }
}
