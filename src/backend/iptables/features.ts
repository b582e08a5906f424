// What the tools and the kernel of this machine can do, and planned rules without what they cannot. Pure.

import { counters } from '../iptables-kit/chains.ts'

/** What the tools and the kernel of this machine can do. */
export interface IptablesFeatures {
  /** MASQUERADE --random-fully: iptables 1.6.2. */
  readonly randomFully: boolean
  /** The kernel takes out-of-window packets for valid, so nothing is dropped as invalid. */
  readonly liberal: boolean
  /** nfacct objects that exist. */
  readonly counters: ReadonlySet<string>
}

export const sameFeatures = (a: IptablesFeatures, b: IptablesFeatures): boolean =>
  a.randomFully === b.randomFully &&
  a.liberal === b.liberal &&
  a.counters.size === b.counters.size &&
  [...a.counters].every((counter) => b.counters.has(counter))

/** Takes out of planned rules what this machine cannot do. */
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

const localhostRule = new RegExp(`^.* --nfacct-name ${counters.localhost} .*\\n`, 'gm')
