// Makes certificates with openssl, in a directory of the test.

import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

export interface Pair {
  readonly cert: string
  readonly key: string
  readonly certFile: string
  readonly keyFile: string
}

export class CertificateShop {
  readonly dir = mkdtempSync(join(tmpdir(), 'kube-tls-'))
  #serial = 1

  authority(name: string): Pair {
    return this.#make(name, ['-x509', '-subj', `/CN=${name}`, '-addext', 'basicConstraints=critical,CA:TRUE'])
  }

  /** `names` as in subjectAltName: `IP:127.0.0.1,DNS:kubernetes`. */
  issue(name: string, by: Pair, names: string): Pair {
    const extensions = join(this.dir, `${name}.ext`)
    writeFileSync(extensions, names === '' ? 'keyUsage=digitalSignature\n' : `subjectAltName=${names}\n`)
    const request = this.#make(name, ['-subj', `/CN=${name}/O=system:nodes`])
    const signed = ['x509', '-req', '-in', request.certFile, '-CA', by.certFile, '-CAkey', by.keyFile, '-days', '2']
    openssl([
      ...signed,
      '-set_serial',
      String(this.#serial++),
      '-extfile',
      extensions,
      '-out',
      `${request.certFile}.signed`,
    ])
    const certFile = `${request.certFile}.signed`
    return { ...request, certFile, cert: readFileSync(certFile, 'utf8') }
  }

  /** Makes a CA below another one. Go trusts it if it is in the bundle, OpenSSL only with partial trust chains. */
  intermediate(name: string, by: Pair): Pair {
    const extensions = join(this.dir, `${name}.ext`)
    writeFileSync(extensions, 'basicConstraints=critical,CA:TRUE\n')
    const request = this.#make(name, ['-subj', `/CN=${name}`])
    const certFile = `${request.certFile}.signed`
    const signed = ['x509', '-req', '-in', request.certFile, '-CA', by.certFile, '-CAkey', by.keyFile, '-days', '2']
    openssl([...signed, '-set_serial', String(this.#serial++), '-extfile', extensions, '-out', certFile])
    return { ...request, certFile, cert: readFileSync(certFile, 'utf8') }
  }

  close(): void {
    rmSync(this.dir, { recursive: true })
  }

  #make(name: string, args: readonly string[]): Pair {
    const certFile = join(this.dir, `${name}.pem`)
    const keyFile = join(this.dir, `${name}.key`)
    const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', keyFile]
    openssl(['req', '-new', ...curve, '-out', certFile, ...(args.includes('-x509') ? ['-days', '2'] : []), ...args])
    return { cert: readFileSync(certFile, 'utf8'), key: readFileSync(keyFile, 'utf8'), certFile, keyFile }
  }
}

const program = 'openssl'
const openssl = (args: readonly string[]) => execFileSync(program, [...args], { stdio: 'pipe' })
