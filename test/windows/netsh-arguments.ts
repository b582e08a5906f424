// Reads the arguments of `netsh interface ipv4|ipv6 add|delete address` as strictly as Windows does, or more so. Pure.

import { familyOf } from '../../src/lib/ip.ts'

export interface NetshCommand {
  readonly verb: 'add' | 'delete'
  readonly family: 4 | 6
  readonly interface: string
  readonly ip: string
  /** The length of the prefix; undefined in a deletion. */
  readonly bits: number | undefined
}

/** The tags of each command in the order of its help text, with the values that are allowed. The first two are required. */
const tags: Readonly<Record<string, Readonly<Record<string, RegExp>>>> = {
  'ipv4 add': { name: /./, address: /^[\d.]+$/, mask: /^[\d.]+$/, store: /^active$/, skipassource: /^true$/ },
  'ipv4 delete': { name: /./, address: /^[\d.]+$/, store: /^active$/ },
  'ipv6 add': { interface: /./, address: /^[\da-f:]+\/\d+$/, store: /^active$/, skipassource: /^true$/ },
  'ipv6 delete': { interface: /./, address: /^[\da-f:]+$/, store: /^active$/ },
}

/** Returns a sentence about the first mistake, or the command. */
export function parseNetsh(args: readonly string[]): NetshCommand | string {
  const [context, protocol = '', verb, object, ...rest] = args
  const allowed = tags[`${protocol} ${verb}`]
  if (context !== 'interface' || object !== 'address' || allowed === undefined)
    return `unknown command: ${args.join(' ')}`
  const values = readTags(rest, allowed)
  if (typeof values === 'string') return values
  const family = protocol === 'ipv4' ? 4 : 6
  const [ip = '', prefix] = (values.get('address') ?? '').split('/')
  if (familyOf(ip) !== family) return `${ip} is not an address of ${protocol}`
  const name = values.get(family === 4 ? 'name' : 'interface') ?? ''
  const bits = readBits(values.get('mask'), prefix)
  if (verb === 'add' && bits === undefined) return 'the prefix is missing or wrong'
  return { verb: verb === 'add' ? 'add' : 'delete', family, interface: name, ip, bits }
}

function readTags(texts: readonly string[], allowed: Readonly<Record<string, RegExp>>): Map<string, string> | string {
  const names = Object.keys(allowed)
  const values = new Map<string, string>()
  let last = -1
  for (const text of texts) {
    const [, name = '', value = ''] = /^(\w+)=(.*)$/.exec(text) ?? []
    const at = names.indexOf(name)
    if (at < 0) return `unknown tag: ${text}`
    if (at <= last) return `${name} is repeated or in the wrong place`
    if (allowed[name]?.test(value) !== true) return `${name} has a wrong value: ${value}`
    last = at
    values.set(name, value)
  }
  const missing = names.slice(0, 2).find((name) => !values.has(name))
  return missing === undefined ? values : `${missing} is missing`
}

/** The ones of a mask must come before its zeros. */
function readBits(mask: string | undefined, prefix: string | undefined): number | undefined {
  if (mask === undefined) return prefix === undefined ? undefined : Number(prefix)
  const ones = mask
    .split('.')
    .map((part) => Number(part).toString(2).padStart(8, '0'))
    .join('')
  return /^1+0*$/.test(ones) && ones.length === 32 ? ones.replaceAll('0', '').length : undefined
}
