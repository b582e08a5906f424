// Creates a self-signed certificate for the server's own addresses, so that no other tool is needed.

import { createHash, generateKeyPairSync, randomBytes, sign, X509Certificate } from 'node:crypto'
import { parseIp } from '../../lib/ip.ts'
import { bits, boolean, explicit, identifier, implicit, integer, octets, sequence, set, time, utf8 } from './der.ts'

export interface KeyPair {
  readonly cert: string
  readonly key: string
}

const ecdsaSha256 = sequence(identifier('1.2.840.10045.4.3.2'))
const dayMs = 86_400_000

/** `names` are addresses or host names. The certificate is its own authority, so clients need exactly this one. */
export function createSelfSigned(names: readonly string[], now: number): KeyPair {
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const spki = publicKey.export({ type: 'spki', format: 'der' })
  const subject = sequence(set(sequence(identifier('2.5.4.3'), utf8('sluice'))))
  const serial = randomBytes(16)
  // A positive number of full length.
  serial.writeUInt8((serial.readUInt8(0) & 0x7f) | 0x40, 0)
  const body = sequence(
    explicit(0, integer(Buffer.from([2]))),
    integer(serial),
    ecdsaSha256,
    subject,
    // Valid from an hour ago, because the clocks of two machines seldom agree.
    sequence(time(now - 3_600_000), time(now + 3650 * dayMs)),
    subject,
    spki,
    explicit(3, sequence(...extensions(names, spki))),
  )
  const signature = sign('sha256', body, privateKey)
  return {
    cert: pem('CERTIFICATE', sequence(body, ecdsaSha256, bits(signature))),
    key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
  }
}

function extensions(names: readonly string[], spki: Uint8Array): readonly Buffer[] {
  const keyId = createHash('sha1').update(spki).digest()
  const critical = boolean(true)
  return [
    sequence(identifier('2.5.29.19'), critical, octets(sequence(boolean(true)))),
    // digitalSignature and keyCertSign
    sequence(identifier('2.5.29.15'), critical, octets(bits(Buffer.from([0x84]), 2))),
    sequence(identifier('2.5.29.37'), octets(sequence(identifier('1.3.6.1.5.5.7.3.1')))),
    sequence(identifier('2.5.29.14'), octets(octets(keyId))),
    sequence(identifier('2.5.29.35'), octets(sequence(implicit(0, keyId)))),
    sequence(identifier('2.5.29.17'), octets(sequence(...names.map(alternativeName)))),
  ]
}

function alternativeName(name: string): Buffer {
  const ip = parseIp(name)
  return ip === undefined ? implicit(2, Buffer.from(name, 'latin1')) : implicit(7, ip)
}

function pem(label: string, der: Buffer): string {
  const lines = der.toString('base64').match(/.{1,64}/g) ?? []
  return `-----BEGIN ${label}-----\n${lines.join('\n')}\n-----END ${label}-----\n`
}

/** True if the certificate is valid for all names and for at least another month. */
export function isCertificateUsable({ cert }: KeyPair, names: readonly string[], now: number): boolean {
  try {
    const certificate = new X509Certificate(cert)
    if (Date.parse(certificate.validTo) < now + 30 * dayMs) return false
    return names.every(
      (name) => (parseIp(name) === undefined ? certificate.checkHost(name) : certificate.checkIP(name)) !== undefined,
    )
  } catch {
    return false
  }
}
