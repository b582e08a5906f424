// Runs the exec credential plugin that a kubeconfig names, and reads the credential that it prints.

import { execFile } from 'node:child_process'
import { ProxyError } from '../lib/errors.ts'
import { readSystemCode } from './api-errors.ts'
import type { ExecPlugin } from './connection.ts'
import { asObject, readString } from './reflect/fields.ts'

export interface Credential {
  readonly token: string
  readonly certificate: { readonly cert: string; readonly key: string } | undefined
  /** Unix ms; Infinity if the credential does not expire. */
  readonly expires: number
}

const timeoutMs = 60_000

export async function runPlugin(plugin: ExecPlugin, signal?: AbortSignal): Promise<Credential> {
  const output = await execute(plugin, signal)
  const wrong = (message: string) => new ProxyError('credentials', `exec plugin ${plugin.command}: ${message}`)
  let json: unknown
  try {
    json = JSON.parse(output)
  } catch {
    throw wrong('its output is not valid JSON')
  }
  const answer = asObject(json)
  if (answer?.kind !== 'ExecCredential') throw wrong('its output is not an ExecCredential')
  if (answer.apiVersion !== plugin.apiVersion) {
    throw wrong(`it answers in ${String(answer.apiVersion)}, but the kubeconfig says ${plugin.apiVersion}`)
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
  if (Number.isNaN(expires)) throw wrong(`its expirationTimestamp is not a valid time: ${expiration}`)
  return { token, certificate: cert === '' ? undefined : { cert, key }, expires }
}

function execute(plugin: ExecPlugin, signal: AbortSignal | undefined): Promise<string> {
  const spec = { interactive: false, ...(plugin.cluster === undefined ? {} : { cluster: plugin.cluster }) }
  const input = JSON.stringify({ kind: 'ExecCredential', apiVersion: plugin.apiVersion, spec })
  const env = { ...process.env, ...plugin.env, KUBERNETES_EXEC_INFO: input }
  return new Promise((resolve, reject) => {
    const options = { env, timeout: timeoutMs, maxBuffer: 1 << 20, ...(signal === undefined ? {} : { signal }) }
    const child = execFile(plugin.command, [...plugin.args], options, (error, stdout, stderr) => {
      if (error === null) return resolve(stdout)
      if (signal?.aborted) return reject(signal.reason)
      const isMissing = readSystemCode(error) === 'ENOENT'
      const explanation = isMissing
        ? ['no such program', plugin.installHint].filter(Boolean).join('. ')
        : cutEnd(stderr) || error.message
      reject(new ProxyError('credentials', `exec plugin ${plugin.command}: ${explanation}`, { cause: error }))
    })
    child.stdin?.end()
  })
}

const cutEnd = (text: string): string => text.trim().slice(-500)
