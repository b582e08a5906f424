// Finds other proxies that run on this machine, and rules that proxies of other modes have left.

import { readdirSync, readlinkSync } from 'node:fs'
import type { Mode } from '../../backend/backend.ts'
import { type Finding, ok } from '../../backend/finding.ts'
import type { Leftover } from '../../backend/proxy-mode.ts'
import { readTextOrEmpty } from '../text-file.ts'

interface ProxyProcess {
  readonly pid: number
  readonly name: 'kube-proxy' | 'sluice'
}

export function examineOtherProxies(mode: Mode, leftovers: readonly Leftover[]): readonly Finding[] {
  const running = findProxyProcesses()
  return [checkProcesses(running), checkLeftovers(mode, leftovers, running.length > 0)]
}

function checkProcesses(running: readonly ProxyProcess[]): Finding {
  const about = 'proxies'
  if (running.length < 2) return ok(about, running[0]?.name ?? 'none runs')
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
  if (program === undefined || !isInThisNetwork(pid)) return undefined
  if (program.endsWith('kube-proxy')) return { pid, name: 'kube-proxy' }
  return words.includes('proxy') || words.includes('up') ? { pid, name: 'sluice' } : undefined
}

function isInThisNetwork(pid: number): boolean {
  try {
    return readlinkSync(`/proc/${pid}/ns/net`) === readlinkSync('/proc/self/ns/net')
  } catch {
    return false
  }
}
