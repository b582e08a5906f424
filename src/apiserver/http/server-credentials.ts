// The server's certificate and token, and the kubeconfig that gives them to clients. They are stored beside the state with mode 0600.

import { createHash, randomBytes, timingSafeEqual } from 'node:crypto'
import { join } from 'node:path'
import { stringify } from 'yaml'
import { ensurePrivateDirectory, readPrivateFile, writePrivateFile } from '../../sys/private-files.ts'
import { createSelfSigned, isCertificateUsable, type KeyPair } from './certificate.ts'

export interface ServerCredentials {
  readonly token: string
  readonly keyPair: KeyPair
}

/**
 * Loads the credentials of the last start if they are still usable, so that existing kubeconfigs keep working. Throws a ProxyError
 * 'foreign' if another user could have planted them: the server would let in everyone who knows the token.
 */
export function loadCredentials(directory: string, names: readonly string[], now: number): ServerCredentials {
  ensurePrivateDirectory(directory)
  const read = (name: string) => readPrivateFile(join(directory, name)) ?? ''
  const write = (name: string, text: string) => writePrivateFile(join(directory, name), text)
  let token = read('token').trim()
  if (token.length < 32) {
    token = createToken()
    write('token', `${token}\n`)
  }
  let keyPair: KeyPair = { cert: read('server.crt'), key: read('server.key') }
  if (keyPair.key === '' || !isCertificateUsable(keyPair, names, now)) {
    keyPair = createSelfSigned(names, now)
    write('server.key', keyPair.key)
    write('server.crt', keyPair.cert)
  }
  return { token, keyPair }
}

export const createToken = (): string => randomBytes(32).toString('base64url')

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
