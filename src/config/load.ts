// Loads the text of a configuration file: decodes it, then fills in the defaults that only a file gets. Pure.

import { hostPort, parseIp } from '../lib/ip.ts'
import type { Value } from './codecs.ts'
import { apiVersion, documentKind, fromV1alpha1, makeDocument, type Unchecked } from './configuration.ts'
import { decode } from './decode.ts'
import { isZero } from './setting.ts'
import { healthzPort, metricsPort, settingByPath } from './settings-table.ts'
import { splitAddress } from './value-syntax.ts'

export interface Loaded {
  /** Not validated, and without the defaults that depend on the platform: `mode` may be ''. */
  readonly config: Unchecked
  readonly warnings: readonly string[]
  /** Line of each field that the file gives, by path in v1alpha1. */
  readonly lines: ReadonlyMap<string, number>
}

/** Throws a ProxyError whose message names file, line and field. */
export function loadConfigFile(path: string, text: string): Loaded {
  const { values, lines, warnings } = decode(path, text, { apiVersion, kind: documentKind, settings: settingByPath })
  const document = makeDocument(withFileDefaults(values))
  return { config: fromV1alpha1(document), warnings, lines }
}

/** Appends the port to a bare address. Any other text is returned unchanged, so that validation reports it. */
export function appendPort(address: string, port: number): string {
  if (splitAddress(address) !== undefined || parseIp(address) === undefined) return address
  return hostPort(address, port)
}

function withFileDefaults(given: ReadonlyMap<string, Value>): Map<string, Value> {
  const values = new Map([...given].filter(([path, value]) => settingByPath.get(path)?.keepsZero || !isZero(value)))
  // Only the bind address of a file moves the servers to IPv6. kube-proxy applies the flag after it has made the defaults.
  const bind = parseIp(String(values.get('bindAddress') ?? '0.0.0.0'))
  const ipv4 = bind?.length === 4
  const address = (path: string, fallback: string, port: number) =>
    values.set(path, appendPort(String(values.get(path) ?? fallback), port))
  address('healthzBindAddress', ipv4 ? '0.0.0.0' : '::', healthzPort)
  address('metricsBindAddress', ipv4 ? '127.0.0.1' : '::1', metricsPort)
  return values
}
