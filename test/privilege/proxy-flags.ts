// The flags of a proxy whose privileges are tested. Its API server has a name, so that the proxy must look it up.

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { nodeName } from '../scenarios/expand.ts'

export const apiPort = 8001

export const proxyFlags = (mode: string): readonly string[] => [
  ...[`--master=http://api.sluice.test:${apiPort}`, `--proxy-mode=${mode}`, `--hostname-override=${nodeName}`],
  ...['--cluster-cidr=10.0.0.0/8', '--conntrack-max-per-core=0', '--conntrack-tcp-timeout-established=0'],
  ...['--conntrack-tcp-timeout-close-wait=0', '--healthz-bind-address=0.0.0.0:10256', '--profiling', '--v=4'],
]

/** Switches on what needs more of the system than the defaults do: a file that is watched, and notifications of connection tracking. */
const settings = `apiVersion: sluice/v1alpha1
kind: SluiceConfiguration
outliers: { ejection: on }
traffic: { accounting: true }
`

/** Writes a file with settings, and returns the flag that names it. */
export function writeSettings(folder: string): string {
  const path = join(folder, 'settings.yaml')
  writeFileSync(path, settings, { mode: 0o644 })
  return `--sluice-config=${path}`
}

/** What the init container of the manifests runs, with all privileges. */
export function initCommand(program: readonly string[], mode: string, more: readonly string[] = []): string {
  const flags = proxyFlags(mode).map((flag) => flag.replace('api.sluice.test', '127.0.0.1'))
  return [...program, ...flags, ...more, '--init-only'].join(' ')
}
