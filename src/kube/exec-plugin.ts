// Runs the exec credential plugin that a kubeconfig names, and reads the credential that it prints.

import { parseBounded } from '../lib/bounded-json.ts'
import { hasErrno, ProxyError } from '../lib/errors.ts'
import type { Clock } from '../lib/time.ts'
import type { ExecPlugin } from './connection.ts'
import { asObject, formatValue, readString } from './decode/fields.ts'
import { runInGroup } from './process-group.ts'

export interface Credential {
  readonly token: string
  readonly certificate: { readonly cert: string; readonly key: string } | undefined
  /** Unix ms; Infinity if the credential does not expire. */
  readonly expires: number
}

export async function runPlugin(plugin: ExecPlugin, clock: Clock, signal: AbortSignal): Promise<Credential> {
  const output = await execute(plugin, clock, signal)
  const wrong = (message: string) => new ProxyError('credentials', `exec plugin ${plugin.command}: ${message}`)
  let json: unknown
  try {
    json = parseBounded(output)
  } catch {
    throw wrong('its output is not valid JSON')
  }
  const answer = asObject(json)
  if (answer?.kind !== 'ExecCredential') throw wrong('its output is not an ExecCredential')
  if (answer.apiVersion !== plugin.apiVersion) {
    throw wrong(`it answers in ${formatValue(answer.apiVersion)}, but the kubeconfig says ${plugin.apiVersion}`)
  }
  const status = asObject(answer.status)
  if (status === undefined) throw wrong('its answer has no status')
  const token = readString(status, 'token')
  const cert = readString(status, 'clientCertificateData')
  const key = readString(status, 'clientKeyData')
  if ((cert === '') !== (key === '')) throw wrong('a client certificate and its key must come together')
  if (cert === '' && token === '') throw wrong('its answer holds neither a token nor a client certificate')
  const expiration = readString(status, 'expirationTimestamp')
  const expires = expiration === '' ? Number.POSITIVE_INFINITY : Date.parse(expiration)
  if (Number.isNaN(expires)) throw wrong(`its expirationTimestamp is not a valid time: ${formatValue(expiration)}`)
  return { token, certificate: cert === '' ? undefined : { cert, key }, expires }
}

async function execute(plugin: ExecPlugin, clock: Clock, signal: AbortSignal): Promise<string> {
  const spec = { interactive: false, ...(plugin.cluster === undefined ? {} : { cluster: plugin.cluster }) }
  const input = JSON.stringify({ kind: 'ExecCredential', apiVersion: plugin.apiVersion, spec })
  const env = { ...process.env, ...plugin.env, KUBERNETES_EXEC_INFO: input }
  const fail = (explanation: string, cause?: unknown) =>
    new ProxyError('credentials', `exec plugin ${plugin.command}: ${explanation}`, { cause })
  try {
    return await runInGroup(plugin.command, plugin.args, { env, clock, signal })
  } catch (error) {
    if (signal.aborted) throw signal.reason
    if (hasErrno(error, 'ENOENT')) {
      throw fail(['no such program', plugin.installHint].filter(Boolean).join('. '), error)
    }
    throw fail(error instanceof Error ? error.message : String(error))
  }
}
