// What names, labels, ports and addresses may look like, in the words in which the API server refuses them. Pure.

import { parseIp } from '../../lib/ip.ts'

/** Each answers why the value is refused; '' if it is not. */
type Rule = (value: string) => string

const label = '[a-z0-9]([-a-z0-9]*[a-z0-9])?'
const labelForm = new RegExp(`^${label}$`)
const subdomain = `${label}(\\.${label})*`
const subdomainForm = new RegExp(`^${subdomain}$`)
const qualified = '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]'
const qualifiedForm = new RegExp(`^${qualified}$`)

const tooLong = (limit: number) => `must be no more than ${limit} bytes`

export const labelRule: Rule = (value) => {
  if (value.length > 63) return tooLong(63)
  if (labelForm.test(value)) return ''
  return `a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '${label}')`
}

export const subdomainRule: Rule = (value) => {
  if (value.length > 253) return tooLong(253)
  if (subdomainForm.test(value)) return ''
  return `a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '${subdomain}')`
}

export const isLabelName = (value: string): boolean => labelNameRule(value) === ''

export const labelNameRule: Rule = (value) => {
  const slash = value.indexOf('/')
  const name = value.slice(slash + 1)
  const prefix = slash < 0 ? undefined : value.slice(0, slash)
  if (prefix !== undefined) {
    if (prefix === '') return 'prefix part must be non-empty'
    const why = subdomainRule(prefix)
    if (why !== '') return `prefix part ${why}`
  }
  if (name === '') return 'name part must be non-empty'
  if (name.length > 63) return `name part ${tooLong(63)}`
  if (qualifiedForm.test(name)) return ''
  return `name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '${qualified}')`
}

export const isLabelValue = (value: string): boolean => labelValueRule(value) === ''

export const labelValueRule: Rule = (value) => {
  if (value.length > 63) return tooLong(63)
  if (value === '' || qualifiedForm.test(value)) return ''
  return `a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(${qualified})?')`
}

/** IANA service names, which name container ports. */
export const portNameRule: Rule = (value) => {
  if (value.length > 15) return 'must be no more than 15 characters'
  if (!/^[-a-z0-9]+$/.test(value)) return 'must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)'
  if (!/[a-z]/.test(value)) return 'must contain at least one letter (a-z)'
  if (value.includes('--')) return 'must not contain consecutive hyphens'
  return /^-|-$/.test(value) ? 'must not begin or end with a hyphen' : ''
}

export const portRule = (value: unknown): string =>
  Number.isInteger(value) && (value as number) >= 1 && (value as number) <= 65535
    ? ''
    : 'must be between 1 and 65535, inclusive'

export const ipRule: Rule = (value) => {
  const bytes = strictIp(value)
  return bytes === undefined ? 'must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)' : ''
}

/** The API server takes no leading zeros in new objects: other programs read them as octal. */
function strictIp(value: string): Uint8Array | undefined {
  if (/(^|[.:])0\d+(?=\.)|\.0\d+$/.test(value)) return undefined
  return parseIp(value)
}

/** Addresses that no endpoint may have: packets to them would not leave the node. */
export function endpointIpRule(ip: string): string {
  const bytes = strictIp(ip)
  if (bytes === undefined) return 'must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)'
  const zero = bytes.every((byte) => byte === 0)
  const loopback =
    bytes.length === 4 ? bytes[0] === 127 : bytes.subarray(0, 15).every((b) => b === 0) && bytes[15] === 1
  if (zero) return `may not be unspecified (${ip})`
  if (loopback) return 'may not be in the loopback range (127.0.0.0/8, ::1/128)'
  const linkLocal =
    bytes.length === 4
      ? bytes[0] === 169 && bytes[1] === 254
      : bytes[0] === 0xfe && ((bytes[1] as number) & 0xc0) === 0x80
  if (linkLocal) return 'may not be in the link-local range (169.254.0.0/16, fe80::/10)'
  const multicast =
    bytes.length === 4
      ? bytes[0] === 224 && bytes[1] === 0 && bytes[2] === 0
      : bytes[0] === 0xff && ((bytes[1] as number) & 0x0f) === 2
  return multicast ? 'may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)' : ''
}
