// The server's certificate and token, and the kubeconfig that gives them to clients. They are stored beside the state with mode 0600.

import { createHash, randomBytes, timingSafeEqual } from 'node:crypto'
import { mkdir, readFile, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { stringify } from 'yaml'
import { createSelfSigned, isCertificateUsable, type KeyPair } from './certificate.ts'

export interface ServerCredentials {
  readonly token: string
  readonly keyPair: KeyPair
}

/** Loads the credentials of the last start if they are still usable, so that existing kubeconfigs keep working. */
export async function loadCredentials(
  directory: string,
  names: readonly string[],
  now: number,
): Promise<ServerCredentials> {
  await mkdir(directory, { recursive: true, mode: 0o700 })
  const read = (name: string) => readFile(join(directory, name), 'utf8').catch(() => '')
  let token = (await read('token')).trim()
  if (token.length < 32) {
    token = createToken()
    await writePrivate(join(directory, 'token'), `${token}\n`)
  }
  let keyPair: KeyPair = { cert: await read('server.crt'), key: await read('server.key') }
  if (keyPair.key === '' || !isCertificateUsable(keyPair, names, now)) {
    keyPair = createSelfSigned(names, now)
    await writePrivate(join(directory, 'server.key'), keyPair.key)
    await writePrivate(join(directory, 'server.crt'), keyPair.cert)
  }
  return { token, keyPair }
}

export const createToken = (): string => randomBytes(32).toString('base64url')

async function writePrivate(path: string, text: string): Promise<void> {
  await writeFile(`${path}.part`, text, { mode: 0o600 })
  await rename(`${path}.part`, path)
}

/** Returns a check of the Authorization header that takes constant time. */
export function createTokenCheck(token: string): (authorization: string | undefined) => boolean {
  const digest = (text: string) => createHash('sha256').update(text).digest()
  const expected = digest(token)
  return (authorization) => {
    const given = /^Bearer +(\S+)$/i.exec(authorization ?? '')?.[1]
    return given !== undefined && timingSafeEqual(digest(given), expected)
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
