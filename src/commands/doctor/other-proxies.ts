// Finds other proxies that run on this machine, and rules that proxies of other modes have left.

import { readdirSync, readlinkSync } from 'node:fs'
import type { Mode } from '../../backend/backend.ts'
import { couldNotLook, type Finding, ok } from '../../backend/finding.ts'
import { findLeftovers } from '../../backend/leftovers.ts'
import type { Leftover } from '../../backend/proxy-mode.ts'
import { describeError, hasErrno } from '../../lib/errors.ts'
import { readTextOrEmpty } from '../text-file.ts'
import { hasNetAdmin } from './machine.ts'

interface ProxyProcess {
  readonly pid: number
  readonly name: 'kube-proxy' | 'sluice'
  /** Undefined if we may not know. */
  readonly isHere: boolean | undefined
}

/** Looks at the network namespace of this thread. `answering` is the pid of the proxy that has answered; 0 if none has. */
export async function examineOtherProxies(mode: Mode, answering: number): Promise<readonly Finding[]> {
  const others = findProxyProcesses().filter(({ pid }) => pid !== answering)
  const own: ProxyProcess = { pid: answering, name: 'sluice', isHere: true }
  const running = answering === 0 ? others : [own, ...others]
  return [checkProcesses(running), await examineLeftovers(mode, running.length > 0)]
}

async function examineLeftovers(mode: Mode, isProxyRunning: boolean): Promise<Finding> {
  const about = 'rules of proxies'
  if (!hasNetAdmin()) return couldNotLook(about, 'that needs CAP_NET_ADMIN')
  try {
    return checkLeftovers(mode, await findLeftovers(), isProxyRunning)
  } catch (error) {
    return couldNotLook(about, describeError(error))
  }
}

function checkProcesses(running: readonly ProxyProcess[]): Finding {
  const about = 'proxies'
  const hidden = running.filter(({ isHere }) => isHere === undefined)
  if (hidden.length > 0) {
    const list = hidden.map(({ pid, name }) => `${name} (pid ${pid})`).join(', ')
    return couldNotLook(about, `not permitted to see whether ${list} serves this network`)
  }
  if (running.length < 2)
    return ok(about, running[0] === undefined ? 'none runs' : `${running[0].name} (pid ${running[0].pid})`)
  return {
    level: 'problem',
    about,
    found: running.map(({ pid, name }) => `${name} (pid ${pid})`).join(', '),
    meaning: 'Two proxies on one node undo each other’s work or translate packets twice.',
    todo: 'Stop all but one; for kube-proxy, exclude this node from its DaemonSet.',
  }
}

/** Rules of the examined mode are expected; rules of another mode are expected only while a proxy of that mode runs. */
function checkLeftovers(mode: Mode, leftovers: readonly Leftover[], isProxyRunning: boolean): Finding {
  const about = 'rules of proxies'
  const modes = [...new Set(leftovers.map((one) => one.mode))]
  const hasOthers = modes.some((one) => one !== mode)
  if (modes.length < 2 && !(hasOthers && !isProxyRunning)) return ok(about, modes[0] ?? 'none')
  return {
    level: 'warning',
    about,
    found: leftovers.map((one) => `${one.mode}: ${one.what} in ${one.where}`).join('; '),
    meaning: 'Rules of another mode still translate packets: old endpoints answer, or none does.',
    todo: 'sluice cleanup --dry-run shows them, sluice cleanup removes them (the proxy writes its own again).',
  }
}

function findProxyProcesses(): readonly ProxyProcess[] {
  return readdirSync('/proc')
    .map(Number)
    .filter((pid) => Number.isInteger(pid) && pid !== process.pid)
    .flatMap((pid) => proxyProcess(pid) ?? [])
}

/** Returns undefined if the process is not a proxy or runs in another network namespace. */
function proxyProcess(pid: number): ProxyProcess | undefined {
  const words = readTextOrEmpty(`/proc/${pid}/cmdline`).split('\0')
  const program = words.find((word) => /(^|\/)(kube-proxy|sluice)$/.test(word))
  if (program === undefined) return undefined
  const isHere = isInThisNetwork(pid)
  if (isHere === false) return undefined
  if (program.endsWith('kube-proxy')) return { pid, name: 'kube-proxy', isHere }
  return words.includes('proxy') || words.includes('up') ? { pid, name: 'sluice', isHere } : undefined
}

function isInThisNetwork(pid: number): boolean | undefined {
  try {
    // The namespace of the thread: the command may have entered that of the proxy.
    return readlinkSync(`/proc/${pid}/ns/net`) === readlinkSync('/proc/thread-self/ns/net')
  } catch (error) {
    return hasErrno(error, 'EACCES') ? undefined : false
  }
}
