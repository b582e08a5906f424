// Parses and formats IP addresses and CIDRs as Kubernetes does: leading zeros are decimal, output is canonical (RFC 5952). Pure.

export type Family = 4 | 6

/** The names Kubernetes uses for families, in labels and in JSON. */
export const familyName = (family: Family): 'IPv4' | 'IPv6' => (family === 4 ? 'IPv4' : 'IPv6')

export interface Cidr {
  readonly family: Family
  /** Network address, canonical. */
  readonly ip: string
  readonly bits: number
  /** `ip/bits`. */
  readonly text: string
}

/** Returns 4 or 16 bytes, or undefined if the text is not a valid address. An IPv4-mapped IPv6 address counts as IPv4. */
export function parseIp(text: string): Uint8Array | undefined {
  if (!text.includes(':')) return parseIpv4(text)
  const bytes = parseIpv6(text)
  if (bytes === undefined) return undefined
  const mapped = bytes.subarray(0, 10).every((byte) => byte === 0) && bytes[10] === 0xff && bytes[11] === 0xff
  return mapped ? bytes.slice(12) : bytes
}

export function formatIp(bytes: Uint8Array): string {
  if (bytes.length === 4) return bytes.join('.')
  const groups = Array.from({ length: 8 }, (_, i) => ((bytes[2 * i] as number) << 8) | (bytes[2 * i + 1] as number))
  const gap = longestZeroRun(groups)
  const hex = groups.map((group) => group.toString(16))
  if (gap.length < 2) return hex.join(':')
  return `${hex.slice(0, gap.start).join(':')}::${hex.slice(gap.start + gap.length).join(':')}`
}

/** Returns the canonical spelling, or undefined if the text is not a valid address. */
export function canonicalIp(text: string): string | undefined {
  if (isCanonicalIpv4(text)) return text
  const bytes = parseIp(text)
  return bytes === undefined ? undefined : formatIp(bytes)
}

/** Most addresses are canonical IPv4 addresses already: this check makes no new string for them. */
function isCanonicalIpv4(text: string): boolean {
  const { length } = text
  if (length < 7 || length > 15) return false
  let dots = 0
  let digits = 0
  let value = 0
  for (let i = 0; i < length; i++) {
    const digit = text.charCodeAt(i) - 48
    if (digit >= 0 && digit <= 9) {
      if (digits > 0 && value === 0) return false
      value = value * 10 + digit
      digits++
      if (value > 255) return false
    } else {
      if (digit !== -2 || digits === 0) return false
      dots++
      digits = value = 0
    }
  }
  return dots === 3 && digits > 0
}

/** The family of a canonical address. */
export const familyOf = (ip: string): Family => (ip.includes(':') ? 6 : 4)

/** `ip:port`, with brackets around IPv6. */
export const hostPort = (ip: string, port: number): string =>
  // `join` makes a flat string. V8 would keep the result of a template as a tree of its parts, for tens of thousands of endpoints.
  [ip.includes(':') ? `[${ip}]` : ip, port].join(':')

/** The inverse of `hostPort`; also accepts a host name. Returns undefined without a decimal port. */
export function splitHostPort(text: string): { host: string; port: number } | undefined {
  const match = /^(?:\[([^[\]]*)\]|([^:[\]]*)):(\d{1,5})$/.exec(text)
  if (match === null) return undefined
  const port = Number(match[3])
  return port > 65535 ? undefined : { host: (match[1] ?? match[2]) as string, port }
}

/** Host bits are masked off. Returns undefined if the text is not `address/prefix`. */
export function parseCidr(text: string): Cidr | undefined {
  const slash = text.indexOf('/')
  if (text.endsWith('/32')) {
    // Most of thousands of ranges are single addresses: no bit is masked off.
    const ip = text.slice(0, slash)
    if (isCanonicalIpv4(ip)) return { family: 4, ip, bits: 32, text }
  }
  if (slash < 0 || !/^\d{1,4}$/.test(text.slice(slash + 1))) return undefined
  const address = text.slice(0, slash)
  const bytes = parseIp(address)
  let bits = Number(text.slice(slash + 1))
  if (bytes === undefined) return undefined
  if (bytes.length === 4 && address.includes(':')) bits -= 96
  if (bits < 0 || bits > bytes.length * 8) return undefined
  const ip = formatIp(maskBytes(bytes, bits))
  return { family: bytes.length === 4 ? 4 : 6, ip, bits, text: `${ip}/${bits}` }
}

export function contains(cidr: Cidr, ip: string): boolean {
  if (familyOf(ip) !== cidr.family) return false
  const bytes = parseIp(ip)
  return bytes !== undefined && formatIp(maskBytes(bytes, cidr.bits)) === cidr.ip
}

export function maskBytes(bytes: Uint8Array, bits: number): Uint8Array {
  return bytes.map((byte, i) => {
    const kept = Math.min(8, Math.max(0, bits - 8 * i))
    return byte & (0xff00 >> kept) & 0xff
  })
}

export const isLoopback = (ip: string): boolean => (ip.includes(':') ? ip === '::1' : ip.startsWith('127.'))

export const isUnspecified = (ip: string): boolean => ip === '0.0.0.0' || ip === '::'

export const isLinkLocal6 = (ip: string): boolean => /^fe[89ab][0-9a-f]:/.test(ip)

function parseIpv4(text: string): Uint8Array | undefined {
  const parts = text.split('.')
  if (parts.length !== 4) return undefined
  const bytes = new Uint8Array(4)
  for (const [i, part] of parts.entries()) {
    if (!/^\d+$/.test(part) || Number(part) > 255) return undefined
    bytes[i] = Number(part)
  }
  return bytes
}

function parseIpv6(text: string): Uint8Array | undefined {
  const halves = text.split('::')
  if (halves.length > 2) return undefined
  const head = parseGroups(halves[0] as string, halves.length === 1)
  const tail = halves.length === 2 ? parseGroups(halves[1] as string, true) : []
  if (head === undefined || tail === undefined) return undefined
  const missing = 8 - head.length - tail.length
  if (halves.length === 1 ? missing !== 0 : missing < 1) return undefined
  const groups = [...head, ...Array<number>(missing).fill(0), ...tail]
  return Uint8Array.from(groups.flatMap((group) => [group >> 8, group & 0xff]))
}

function parseGroups(text: string, mayEndInIpv4: boolean): number[] | undefined {
  if (text === '') return []
  const groups: number[] = []
  const parts = text.split(':')
  for (const [i, part] of parts.entries()) {
    if (mayEndInIpv4 && i === parts.length - 1 && part.includes('.')) {
      const ipv4 = parseIpv4(part)
      if (ipv4 === undefined) return undefined
      groups.push(((ipv4[0] as number) << 8) | (ipv4[1] as number), ((ipv4[2] as number) << 8) | (ipv4[3] as number))
    } else {
      if (!/^[0-9a-fA-F]{1,4}$/.test(part)) return undefined
      groups.push(Number.parseInt(part, 16))
    }
  }
  return groups
}

function longestZeroRun(groups: readonly number[]): { start: number; length: number } {
  let best = { start: 0, length: 0 }
  for (let start = 0; start < groups.length; start++) {
    let length = 0
    while (groups[start + length] === 0) length++
    if (length > best.length) best = { start, length }
  }
  return best
}
