// Validates the values of the flags of `sluice up`, before anything is started.

import { statSync } from 'node:fs'
import { ProxyError } from '../../lib/errors.ts'
import { canonicalIp, parseCidr } from '../../lib/ip.ts'
import type { Flags } from '../command.ts'
import { parseNodePortRange } from '../node-port-range.ts'

interface FlagRule {
  readonly name: string
  readonly allowed: string
  readonly isValid: (value: string) => boolean
}

const isIp = (value: string): boolean => canonicalIp(value) !== undefined
const isDirectory = (value: string): boolean => statSync(value, { throwIfNoEntry: false })?.isDirectory() === true
const isNodeName = (value: string): boolean => /^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$/.test(value.toLowerCase())

function isCidrPair(value: string): boolean {
  const families = value.split(',').map((one) => parseCidr(one)?.family)
  return families.length <= 2 && !families.includes(undefined) && new Set(families).size === families.length
}

const cidrPair = 'a CIDR, or one of each family separated by a comma'

const rules: readonly FlagRule[] = [
  {
    name: 'port',
    allowed: 'a number from 0 to 65535',
    isValid: (value) => /^\d{1,5}$/.test(value) && Number(value) <= 65_535,
  },
  { name: 'address', allowed: 'an IP address', isValid: isIp },
  { name: 'node-address', allowed: 'an IP address', isValid: isIp },
  { name: 'service-cidr', allowed: cidrPair, isValid: isCidrPair },
  { name: 'cluster-cidr', allowed: cidrPair, isValid: isCidrPair },
  { name: 'manifests', allowed: 'a directory', isValid: isDirectory },
  { name: 'node', allowed: 'a name of lower case letters, digits, - and .', isValid: isNodeName },
]

/** Throws a ProxyError 'usage' that names the flag, the given value and the allowed values. */
export function validateFlags(flags: Flags): void {
  for (const { name, allowed, isValid } of rules) {
    const value = flags.get(name)
    if (value !== undefined && !isValid(value)) {
      throw new ProxyError('usage', `--${name}: given "${value}", allowed: ${allowed}`)
    }
  }
  const range = flags.get('service-node-port-range')
  if (range !== undefined) parseNodePortRange(range)
}

/** Where node ports answer unless a flag says otherwise: a stand-alone load balancer is wanted on every address, localhost included. */
export const nodePortAddresses = 'all,localhost'

/** Splits a value at its commas. */
export const splitList = (text: string | undefined): readonly string[] =>
  (text ?? '').split(',').filter((part) => part !== '')
