// What the programs and the kernel of this machine can do, and planned rules without what they cannot do. Pure.

import { counters } from '../iptables-kit/chains.ts'
import type { PortText } from './port-text.ts'

export interface IptablesFeatures {
  /** MASQUERADE --random-fully, since iptables 1.6.2. */
  readonly randomFully: boolean
  /** The kernel takes out-of-window packets as valid, so no packet is dropped as invalid. */
  readonly liberal: boolean
  /** nfacct objects that exist. */
  readonly counters: ReadonlySet<string>
}

export const haveSameFeatures = (a: IptablesFeatures, b: IptablesFeatures): boolean =>
  a.randomFully === b.randomFully &&
  a.liberal === b.liberal &&
  a.counters.size === b.counters.size &&
  [...a.counters].every((counter) => b.counters.has(counter))

/** Removes from planned rules what this machine cannot do. */
export function adapt(text: string, features: IptablesFeatures): string {
  let adapted = text
  if (!features.randomFully) adapted = adapted.replace(' --random-fully', '')
  if (features.liberal) adapted = adapted.replace(/^.* --ctstate INVALID .*\n/m, '')
  if (!adapted.includes(' -m nfacct ')) return adapted
  if (!features.counters.has(counters.localhost)) adapted = adapted.replace(localhostRule, '')
  if (!features.counters.has(counters.invalid)) {
    adapted = adapted.replace(` -m nfacct --nfacct-name ${counters.invalid}`, '')
  }
  return adapted
}

/** A port's rules in the shared chains of nat. */
export function adaptShared(rules: PortText, features: IptablesFeatures): string {
  const shared = rules.shared()
  return countLeftOut(rules, features) > 0 ? adapt(shared, features) : shared
}

/** Number of a port's shared rules that are left out because the kernel cannot count packets. */
export const countLeftOut = ({ countedCount }: PortText, features: IptablesFeatures): number =>
  countedCount === 0 || features.counters.has(counters.localhost) ? 0 : countedCount

const localhostRule = new RegExp(`^.* --nfacct-name ${counters.localhost} .*\\n`, 'gm')
