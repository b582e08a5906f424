// Reads --service-node-port-range, as kube-apiserver spells it, and guesses the range of a cluster that cannot be asked for it. Pure.

import type { NodePortRange } from '../apiserver/requests/allocations.ts'
import { defaultNodePorts } from '../apiserver/requests/allocations.ts'
import { ProxyError } from '../lib/errors.ts'
import type { ServiceRecord } from '../model/types.ts'
import type { Flag } from './command.ts'

const name = 'service-node-port-range'
const { first, last } = defaultNodePorts

export const nodePortRangeFlag: Flag = {
  name,
  value: 'FIRST-LAST',
  help: `the node ports that services may have (default ${first}-${last})`,
}

/** Throws a ProxyError 'usage'. */
export function parseNodePortRange(text: string): NodePortRange {
  const [, low = '', high = ''] = /^(\d{1,5})-(\d{1,5})$/.exec(text) ?? []
  const range = { first: Number(low), last: Number(high) }
  if (low === '' || range.first < 1 || range.last > 65_535 || range.first > range.last) {
    throw new ProxyError(
      'usage',
      `--${name}: given "${text}", must be FIRST-LAST with ports from 1 to 65535, as 80-32767`,
    )
  }
  return range
}

/** A service with a port outside the default range proves that the cluster has another range, which is not known. */
export function chooseNodePorts(given: string | undefined, services: readonly ServiceRecord[]): NodePortRange {
  if (given !== undefined) return parseNodePortRange(given)
  const ports = services.flatMap((service) => service.ports.map(({ nodePort }) => nodePort)).filter((port) => port > 0)
  const isDefault = ports.every((port) => port >= first && port <= last)
  return isDefault ? defaultNodePorts : { first: 1, last: 65_535 }
}
