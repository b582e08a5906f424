// A configuration file to the internal form: decoding, then the defaults that only a file gets.

import { hostPort, parseIp } from '../lib/ip.ts'
import { fromV1alpha1, makeDocument, type Unchecked } from './configuration.ts'
import { decode } from './decode.ts'
import { isZero } from './setting.ts'
import { settingByPath } from './settings-table.ts'
import { splitAddress } from './text.ts'
import type { Value } from './values.ts'

export interface Loaded {
  /** Not validated, and without the defaults that depend on the platform: `mode` may be ''. */
  readonly config: Unchecked
  readonly warnings: readonly string[]
  /** Line of each field the file gives, by v1alpha1 path. */
  readonly lines: ReadonlyMap<string, number>
}

export const healthzPort = 10256
export const metricsPort = 10249

/** Throws a ProxyError whose message says file, line and field. */
export function loadConfigFile(path: string, text: string): Loaded {
  const { values, lines, warnings } = decode(path, text)
  const document = makeDocument(withFileDefaults(values))
  return { config: fromV1alpha1(document), warnings, lines }
}

/** A bare address with the port put behind it; anything else as it is, for validation to judge. */
export function appendPort(address: string, port: number): string {
  if (splitAddress(address) !== undefined || parseIp(address) === undefined) return address
  return hostPort(address, port)
}

function withFileDefaults(given: ReadonlyMap<string, Value>): Map<string, Value> {
  const values = new Map([...given].filter(([path, value]) => settingByPath.get(path)?.keepsZero || !isZero(value)))
  // Only a file's bind address moves the servers to IPv6; the flag comes after the defaults were made.
  const bind = parseIp(String(values.get('bindAddress') ?? '0.0.0.0'))
  const ipv4 = bind?.length === 4
  const address = (path: string, fallback: string, port: number) =>
    values.set(path, appendPort(String(values.get(path) ?? fallback), port))
  address('healthzBindAddress', ipv4 ? '0.0.0.0' : '::', healthzPort)
  address('metricsBindAddress', ipv4 ? '127.0.0.1' : '::1', metricsPort)
  return values
}
