// Exec credential plugins: runs the program a kubeconfig names, and reads the credential it prints.

import { execFile } from 'node:child_process'
import { ProxyError } from '../lib/errors.ts'
import type { ExecPlugin } from './connection.ts'
import { asObject } from './reflect/fields.ts'

export interface Credential {
  readonly token: string
  readonly certificate: { readonly cert: string; readonly key: string } | undefined
  /** Unix ms; Infinity: it does not expire. */
  readonly expires: number
}

const deadlineMs = 60_000

export async function runPlugin(plugin: ExecPlugin, signal?: AbortSignal): Promise<Credential> {
  const output = await execute(plugin, signal)
  const wrong = (message: string) => new ProxyError('credentials', `exec plugin ${plugin.command}: ${message}`)
  let json: unknown
  try {
    json = JSON.parse(output)
  } catch {
    throw wrong('what it printed is no JSON')
  }
  const answer = asObject(json)
  if (answer?.kind !== 'ExecCredential') throw wrong('it printed no ExecCredential')
  if (answer.apiVersion !== plugin.apiVersion) {
    throw wrong(`it answers in ${String(answer.apiVersion)}, but the kubeconfig says ${plugin.apiVersion}`)
  }
  const status = asObject(answer.status)
  if (status === undefined) throw wrong('its answer has no status')
  const text = (name: string) => (typeof status[name] === 'string' ? (status[name] as string) : '')
  const cert = text('clientCertificateData')
  const key = text('clientKeyData')
  if ((cert === '') !== (key === '')) throw wrong('a client certificate and its key must come together')
  if (cert === '' && text('token') === '') throw wrong('its answer holds neither a token nor a client certificate')
  const expires =
    text('expirationTimestamp') === '' ? Number.POSITIVE_INFINITY : Date.parse(text('expirationTimestamp'))
  if (Number.isNaN(expires)) throw wrong(`its expirationTimestamp is no time: ${text('expirationTimestamp')}`)
  return { token: text('token'), certificate: cert === '' ? undefined : { cert, key }, expires }
}

function execute(plugin: ExecPlugin, signal: AbortSignal | undefined): Promise<string> {
  const spec = { interactive: false, ...(plugin.cluster === undefined ? {} : { cluster: plugin.cluster }) }
  const question = JSON.stringify({ kind: 'ExecCredential', apiVersion: plugin.apiVersion, spec })
  const env = { ...process.env, ...plugin.env, KUBERNETES_EXEC_INFO: question }
  return new Promise((resolve, reject) => {
    const options = { env, timeout: deadlineMs, maxBuffer: 1 << 20, ...(signal === undefined ? {} : { signal }) }
    const child = execFile(plugin.command, [...plugin.args], options, (error, stdout, stderr) => {
      if (error === null) return resolve(stdout)
      if (signal?.aborted) return reject(signal.reason)
      const missing = (error as NodeJS.ErrnoException).code === 'ENOENT'
      const why = missing
        ? ['no such program', plugin.installHint].filter(Boolean).join('. ')
        : tail(stderr) || error.message
      reject(new ProxyError('credentials', `exec plugin ${plugin.command}: ${why}`, { cause: error }))
    })
    child.stdin?.end()
  })
}

const tail = (text: string): string => text.trim().slice(-500)
