// Changes the machine settings that kube-proxy changes once at its start: size and timeouts of conntrack, and the OOM score of the process.

import { readFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { ProxyError } from '../lib/errors.ts'
import { ensureFile, ensureSysctl, readSysctl } from './sysctl.ts'

/** The folders of the kernel's files. Tests use others. */
export interface KernelFiles {
  readonly proc: string
  readonly sys: string
}

export const kernelFiles: KernelFiles = { proc: '/proc', sys: '/sys' }

/** A setting of 0, undefined or false is left as it is. Times are in ms and rounded up to seconds, because 0 would mean "at once". */
export interface ConntrackSettings {
  /** The size of the table, computed from the number of CPUs. */
  readonly max?: number | undefined
  readonly tcpEstablishedMs?: number | undefined
  readonly tcpCloseWaitMs?: number | undefined
  readonly tcpBeLiberal?: boolean | undefined
  readonly udpMs?: number | undefined
  readonly udpStreamMs?: number | undefined
}

/** Returns the changes as `name=value`. Throws at the first setting that cannot be changed, because the user asked for it. */
export function tuneConntrack(settings: ConntrackSettings, files = kernelFiles): readonly string[] {
  const changed: string[] = []
  const set = (name: string, value: number | undefined) => {
    if (value !== undefined && value > 0 && ensure(name, value, files)) changed.push(`${name}=${value}`)
  }
  set('nf_conntrack_max', settings.max)
  if (settings.max !== undefined && settings.max > 0) {
    const buckets = raiseBuckets(Math.floor(settings.max / 4), files)
    if (buckets !== undefined) changed.push(`hashsize=${buckets}`)
  }
  set('nf_conntrack_tcp_timeout_established', seconds(settings.tcpEstablishedMs))
  set('nf_conntrack_tcp_timeout_close_wait', seconds(settings.tcpCloseWaitMs))
  set('nf_conntrack_tcp_be_liberal', settings.tcpBeLiberal === true ? 1 : 0)
  set('nf_conntrack_udp_timeout', seconds(settings.udpMs))
  set('nf_conntrack_udp_timeout_stream', seconds(settings.udpStreamMs))
  return changed
}

/** Returns true if conntrack accepts TCP packets outside of the window as valid. */
export function tcpIsLiberal(files = kernelFiles): boolean {
  const value = readSysctl('net/netfilter/nf_conntrack_tcp_be_liberal', join(files.proc, 'sys'))
  return value !== undefined && value !== '0'
}

/** Scores are from -1000 (never killed when memory is short) to 1000. */
export function setOomScore(score: number, files = kernelFiles): void {
  const path = join(files.proc, 'self/oom_score_adj')
  ensureFile(path, String(score), readOptional(path))
}

/** Counts the CPUs of the host that are online, also those that this process may not use. */
export function countCpus(files = kernelFiles): number {
  const list = readOptional(join(files.sys, 'devices/system/cpu/online')) ?? ''
  const count = list.split(',').reduce((sum, range) => {
    const match = /^(\d+)(?:-(\d+))?$/.exec(range)
    if (match === null) return sum
    return sum + (match[2] === undefined ? 1 : Math.max(0, Number(match[2]) - Number(match[1]) + 1))
  }, 0)
  return count > 0 ? count : availableParallelism()
}

function ensure(name: string, value: number, files: KernelFiles): boolean {
  try {
    return ensureSysctl(`net/netfilter/${name}`, value, join(files.proc, 'sys'))
  } catch (cause) {
    throw addFlag(cause, name)
  }
}

/** Returns the new number of hash buckets if it was raised. The hash table belongs to the whole machine, so it is never shrunk. */
function raiseBuckets(wanted: number, files: KernelFiles): number | undefined {
  const path = join(files.sys, 'module/nf_conntrack/parameters/hashsize')
  const current = readOptional(path)
  if (current === undefined || !/^\d+$/.test(current)) {
    const message = `cannot read ${path}: is the nf_conntrack module loaded? The value must be at least ${wanted}`
    throw addFlag(new ProxyError('sysctl', message, { fields: { file: path, wanted, current } }), 'hashsize')
  }
  if (Number(current) >= wanted) return undefined
  try {
    ensureFile(path, String(wanted), current)
    return wanted
  } catch (cause) {
    throw addFlag(cause, 'hashsize')
  }
}

/** What leaves a setting alone: a field of the file that --config names, or a flag if there is no such file. */
const escapes: Readonly<Record<string, readonly [field: string, flag: string]>> = {
  nf_conntrack_max: ['conntrack.maxPerCore: 0', '--conntrack-max-per-core=0'],
  hashsize: ['conntrack.maxPerCore: 0', '--conntrack-max-per-core=0'],
  nf_conntrack_tcp_timeout_established: [
    'conntrack.tcpEstablishedTimeout: 0s',
    '--conntrack-tcp-timeout-established=0',
  ],
  nf_conntrack_tcp_timeout_close_wait: ['conntrack.tcpCloseWaitTimeout: 0s', '--conntrack-tcp-timeout-close-wait=0'],
  nf_conntrack_tcp_be_liberal: ['conntrack.tcpBeLiberal: false', '--conntrack-tcp-be-liberal=false'],
  nf_conntrack_udp_timeout: ['conntrack.udpTimeout: 0s', '--conntrack-udp-timeout=0'],
  nf_conntrack_udp_timeout_stream: ['conntrack.udpStreamTimeout: 0s', '--conntrack-udp-timeout-stream=0'],
}

/** Adds what leaves the setting alone. */
function addFlag(cause: unknown, name: string): ProxyError {
  const fields = cause instanceof ProxyError ? cause.fields : {}
  const message = cause instanceof Error ? cause.message : String(cause)
  const [field, flag] = escapes[name] ?? []
  const advice = `or leave the setting alone with ${flag}, or with ${field} in the file that --config names`
  return new ProxyError('sysctl', `${message}; ${advice}`, { cause, fields })
}

const seconds = (ms: number | undefined): number => Math.ceil((ms ?? 0) / 1000)

function readOptional(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8').trim()
  } catch {
    return undefined
  }
}
