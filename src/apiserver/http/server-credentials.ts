// Who may talk to the server and how they know it: certificate, token, kubeconfig; kept beside the state with mode 0600.

import { createHash, randomBytes, timingSafeEqual } from 'node:crypto'
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { stringify } from 'yaml'
import { covers, type KeyPair, selfSigned } from './certificate.ts'

export interface ServerCredentials {
  readonly token: string
  readonly pair: KeyPair
}

/** Those of the last start, if they still fit: kubeconfigs that are out there go on working. */
export async function loadCredentials(
  directory: string,
  names: readonly string[],
  now: number,
): Promise<ServerCredentials> {
  await mkdir(directory, { recursive: true, mode: 0o700 })
  const read = (name: string) => readFile(join(directory, name), 'utf8').catch(() => '')
  let token = (await read('token')).trim()
  if (token.length < 32) {
    token = makeToken()
    await writePrivate(join(directory, 'token'), `${token}\n`)
  }
  let pair: KeyPair = { cert: await read('server.crt'), key: await read('server.key') }
  if (pair.key === '' || !covers(pair, names, now)) {
    pair = selfSigned(names, now)
    await writePrivate(join(directory, 'server.key'), pair.key)
    await writePrivate(join(directory, 'server.crt'), pair.cert)
  }
  return { token, pair }
}

export const makeToken = (): string => randomBytes(32).toString('base64url')

async function writePrivate(path: string, text: string): Promise<void> {
  await writeFile(`${path}.part`, text, { mode: 0o600 })
  await rename(`${path}.part`, path)
}

/** In constant time, whatever was sent. */
export function tokenChecker(token: string): (authorization: string | undefined) => boolean {
  const digest = (text: string) => createHash('sha256').update(text).digest()
  const wanted = digest(token)
  return (authorization) => {
    const given = /^Bearer +(\S+)$/i.exec(authorization ?? '')?.[1]
    return given !== undefined && timingSafeEqual(digest(given), wanted)
  }
}

export interface KubeconfigOptions {
  readonly server: string
  /** PEM; undefined for plain HTTP. */
  readonly certificate: string | undefined
  readonly token: string | undefined
}

export function renderKubeconfig({ server, certificate, token }: KubeconfigOptions): string {
  const authority =
    certificate === undefined ? {} : { 'certificate-authority-data': Buffer.from(certificate).toString('base64') }
  return stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'sluice', cluster: { server, ...authority } }],
    users: [{ name: 'sluice', user: token === undefined ? {} : { token } }],
    contexts: [{ name: 'sluice', context: { cluster: 'sluice', user: 'sluice' } }],
    'current-context': 'sluice',
  })
}
