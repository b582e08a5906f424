// How the balancer of a relay chooses, as plans say it. Pure.

import { tableSizeOf } from '../../model/endpoint-slots.ts'
import type { ServicePort } from '../../model/types.ts'

/** How a balancer chooses, if not by turns: at random, or by consistent hashing of the client in a table of this size. */
export type BalancerChoice = { readonly by: 'random' } | { readonly by: 'hash'; readonly size: number }

/** The choice of a service port, as a field that is absent if the port wants turns, or nothing in particular. */
export function planChoice(port: ServicePort): { readonly choice?: BalancerChoice } {
  const size = tableSizeOf(port)
  if (size > 0) return { choice: { by: 'hash', size } }
  return port.algorithm === 'random' ? { choice: { by: 'random' } } : {}
}
