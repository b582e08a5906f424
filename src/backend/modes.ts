// The registry of proxy modes. Adding a mode is a folder and a line here; docs/adding-a-mode.md explains how.

import { ProxyError } from '../lib/errors.ts'
import { type Platform, platform } from '../sys/platform/platform.ts'
import type { Mode } from './backend.ts'
import { iptablesMode } from './iptables/mode.ts'
import { ipvsMode } from './ipvs/mode.ts'
import { nftablesMode } from './nftables/mode.ts'
import type { ProxyMode } from './proxy-mode.ts'
import { userspaceMode } from './userspace/mode.ts'
import { windowsUserspaceMode } from './userspace/windows/windows-mode.ts'

interface SystemModes {
  readonly modes: readonly ProxyMode[]
  /** The mode that `sluice` uses by default. */
  readonly defaultMode: Mode
  /** The mode that `kube-proxy` uses by default. */
  readonly proxyDefaultMode: Mode
}

export const systemModes: Readonly<Record<Platform['name'], SystemModes>> = {
  Linux: {
    // Modes are cleaned up in this order: ipvs before iptables, since chains of ipvs mode use chains that the two modes share.
    modes: [nftablesMode, ipvsMode, iptablesMode, userspaceMode],
    defaultMode: nftablesMode.name,
    proxyDefaultMode: iptablesMode.name,
  },
  Windows: {
    modes: [windowsUserspaceMode],
    defaultMode: windowsUserspaceMode.name,
    proxyDefaultMode: windowsUserspaceMode.name,
  },
}

/** The modes that this system can do. */
export const { modes, defaultMode, proxyDefaultMode } = systemModes[platform.name]

/** Throws a ProxyError 'mode' if this system has no such mode. */
export function findMode(name: Mode, system = platform.name): ProxyMode {
  const known = systemModes[system].modes
  const mode = known.find((one) => one.name === name)
  if (mode !== undefined) return mode
  const names = known.map((one) => one.name).join(', ')
  throw new ProxyError('mode', `there is no mode "${name}" on ${system}; possible: ${names}`)
}
