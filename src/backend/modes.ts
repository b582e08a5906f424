// The registry of proxy modes. Adding a mode is a folder and a line here; docs/adding-a-mode.md explains how.

import { ProxyError } from '../lib/errors.ts'
import type { Mode } from './backend.ts'
import { iptablesMode } from './iptables/mode.ts'
import { ipvsMode } from './ipvs/mode.ts'
import { nftablesMode } from './nftables/mode.ts'
import type { ProxyMode } from './proxy-mode.ts'
import { userspaceMode } from './userspace/mode.ts'

/** Modes are cleaned up in this order: ipvs before iptables, since chains of ipvs mode use chains that the two modes share. */
export const modes: readonly ProxyMode[] = [nftablesMode, ipvsMode, iptablesMode, userspaceMode]

/** The mode that `sluice` uses by default. The default of `kube-proxy` is in the configuration. */
export const defaultMode: Mode = nftablesMode.name

/** Throws a ProxyError 'mode' if this build has no such mode. */
export function findMode(name: Mode): ProxyMode {
  const mode = modes.find((one) => one.name === name)
  if (mode === undefined) throw new ProxyError('mode', `this build has no "${name}" data plane`)
  return mode
}
