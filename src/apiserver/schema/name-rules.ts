// Rules for names, labels, ports and addresses; their complaints are the words of the real kube-apiserver. Pure.

import { canonicalIp, parseCidr, parseIp } from '../../lib/ip.ts'

/** Returns why the value is refused; '' for a good value. */
type Rule = (value: string) => string

const labelPattern = '[a-z0-9]([-a-z0-9]*[a-z0-9])?'
const labelForm = new RegExp(`^${labelPattern}$`)
const subdomainPattern = `${labelPattern}(\\.${labelPattern})*`
const subdomainForm = new RegExp(`^${subdomainPattern}$`)
const qualifiedPattern = '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]'
const qualifiedForm = new RegExp(`^${qualifiedPattern}$`)

const tooLong = (limit: number) => `must be no more than ${limit} bytes`

export const labelRule: Rule = (value) => {
  if (value.length > 63) return 'must be no more than 63 characters'
  if (labelForm.test(value)) return ''
  if (subdomainForm.test(value)) return 'must not contain dots'
  return `a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '${labelPattern}')`
}

export const subdomainRule: Rule = (value) => {
  if (value.length > 253) return tooLong(253)
  if (subdomainForm.test(value)) return ''
  return `a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '${subdomainPattern}')`
}

/** A fully qualified name, as a slice of names has. */
export const domainRule: Rule = (value) => {
  const name = value.replace(/\.$/, '')
  const why = subdomainRule(name)
  if (why !== '') return why
  return name.includes('.') ? '' : 'should be a domain with at least two segments separated by dots'
}

export const isLabelName = (value: string): boolean => labelNameRules(value).length === 0

/** Returns everything that is wrong with the name of a label or annotation. */
export function labelNameRules(value: string): readonly string[] {
  const slash = value.indexOf('/')
  const name = value.slice(slash + 1)
  const prefix = slash < 0 ? undefined : value.slice(0, slash)
  const complaints: string[] = []
  if (prefix === '') complaints.push('prefix part must be non-empty')
  const why = prefix === undefined || prefix === '' ? '' : subdomainRule(prefix)
  if (why !== '') complaints.push(`prefix part ${why}`)
  if (name === '') complaints.push('name part must be non-empty')
  if (name.length > 63) complaints.push(`name part ${tooLong(63)}`)
  if (!qualifiedForm.test(name)) {
    complaints.push(
      `name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '${qualifiedPattern}')`,
    )
  }
  return complaints
}

export const isLabelValue = (value: string): boolean => labelValueRule(value) === ''

export const labelValueRule: Rule = (value) => {
  if (value.length > 63) return tooLong(63)
  if (value === '' || qualifiedForm.test(value)) return ''
  return `a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(${qualifiedPattern})?')`
}

/** Container ports have IANA service names. */
export const portNameRule: Rule = (value) => {
  if (value.length > 15) return 'must be no more than 15 characters'
  if (!/^[-a-z0-9]+$/.test(value)) return 'must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)'
  if (!/[a-z]/.test(value)) return 'must contain at least one letter (a-z)'
  if (value.includes('--')) return 'must not contain consecutive hyphens'
  return /^-|-$/.test(value) ? 'must not begin or end with a hyphen' : ''
}

export const portRule = (value: unknown): string =>
  typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= 65535
    ? ''
    : 'must be between 1 and 65535, inclusive'

const notAnIp = 'must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)'
const notACidr = 'must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)'

/** The API server refuses leading zeros in new objects, because other programs read such numbers as octal. */
export const ipRule: Rule = (value) => {
  if (parseIp(value) === undefined) return notAnIp
  return /(^|[.:])0\d+(?=\.)|\.0\d+$/.test(value) ? 'must not have leading 0s' : ''
}

export const cidrRule: Rule = (value) => {
  const parsed = parseCidr(value)
  if (parsed === undefined) return notACidr
  const [ip = ''] = value.split('/')
  return canonicalIp(ip) === parsed.ip ? '' : 'must not have bits set beyond the prefix length'
}

type IpTest = (bytes: Uint8Array) => boolean

/** Ranges that no endpoint may be in, because packets to them would not leave the node. */
const nodeLocalRanges: readonly { v4: IpTest; v6: IpTest; complaint: string }[] = [
  {
    v4: (bytes) => bytes[0] === 127,
    v6: (bytes) => bytes.every((byte, i) => byte === (i === 15 ? 1 : 0)),
    complaint: 'may not be in the loopback range (127.0.0.0/8, ::1/128)',
  },
  {
    v4: ([first, second]) => first === 169 && second === 254,
    v6: ([first, second = 0]) => first === 0xfe && (second & 0xc0) === 0x80,
    complaint: 'may not be in the link-local range (169.254.0.0/16, fe80::/10)',
  },
  {
    v4: ([first, second, third]) => first === 224 && second === 0 && third === 0,
    v6: ([first, second = 0]) => first === 0xff && (second & 0x0f) === 2,
    complaint: 'may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)',
  },
]

export function endpointIpRule(ip: string): string {
  const why = ipRule(ip)
  const bytes = parseIp(ip)
  if (why !== '' || bytes === undefined) return why
  if (bytes.every((byte) => byte === 0)) return `may not be unspecified (${ip})`
  const range = nodeLocalRanges.find(({ v4, v6 }) => (bytes.length === 4 ? v4(bytes) : v6(bytes)))
  return range?.complaint ?? ''
}
