// Issues keys and certificates of a temporary cluster with openssl: Node can read X.509 but not issue it.

import { execFile } from 'node:child_process'
import { generateKeyPairSync } from 'node:crypto'
import { writeFileSync } from 'node:fs'
import { isIP } from 'node:net'
import { join } from 'node:path'
import { promisify } from 'node:util'

const run = promisify(execFile)

export interface Authority {
  readonly certificate: string
  /** Writes `<name>.crt` and `<name>.key`. The subject has openssl's form: /O=group/CN=user; `names` are addresses and DNS names. */
  issue(name: string, subject: string, names?: readonly string[]): Promise<{ certificate: string; key: string }>
}

export async function createAuthority(directory: string): Promise<Authority> {
  const ca = { certificate: join(directory, 'ca.crt'), key: join(directory, 'ca.key') }
  await sign(ca, '/CN=sluice e2e', ['-addext', 'keyUsage=critical,keyCertSign,digitalSignature'])
  return {
    certificate: ca.certificate,
    async issue(name, subject, names = []) {
      const files = { certificate: join(directory, `${name}.crt`), key: join(directory, `${name}.key`) }
      const extensions = ['-addext', 'basicConstraints=critical,CA:FALSE']
      extensions.push('-addext', 'extendedKeyUsage=serverAuth,clientAuth')
      const list = names.map((one) => `${isIP(one) === 0 ? 'DNS' : 'IP'}:${one}`).join(',')
      if (list !== '') extensions.push('-addext', `subjectAltName=${list}`)
      await sign(files, subject, ['-CA', ca.certificate, '-CAkey', ca.key, ...extensions])
      return files
    },
  }
}

function sign(
  files: { certificate: string; key: string },
  subject: string,
  extra: readonly string[],
): Promise<unknown> {
  const key = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-keyout', files.key]
  const args = ['req', '-x509', '-days', '2', ...key, '-out', files.certificate, '-subj', subject, ...extra]
  return run('openssl', args, { timeout: 30_000 })
}

/** Creates the key pair with which the API server signs and checks ServiceAccount tokens. */
export function createTokenKeys(directory: string): { signing: string; checking: string } {
  const pair = generateKeyPairSync('rsa', {
    modulusLength: 2048,
    publicKeyEncoding: { type: 'spki', format: 'pem' },
    privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
  })
  const signing = join(directory, 'tokens.key')
  const checking = join(directory, 'tokens.pub')
  writeFileSync(signing, pair.privateKey, { mode: 0o600 })
  writeFileSync(checking, pair.publicKey)
  return { signing, checking }
}
