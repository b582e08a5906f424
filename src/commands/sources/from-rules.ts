// Reads the inputs of a plan from the rules that a proxy has on this node, for a node where no API can be asked.

import { hostname } from 'node:os'
import type { Mode } from '../../backend/backend.ts'
import { findMode } from '../../backend/modes.ts'
import type { Config } from '../../config/configuration.ts'
import { sluiceVersion } from '../../config/sluice-version.ts'
import { makeSettings } from '../../daemon/backend-settings.ts'
import { makeNodeFacts } from '../../daemon/node/node-facts.ts'
import type { Inputs } from '../../http/admin.ts'
import { ProxyError } from '../../lib/errors.ts'
import { familyOf } from '../../lib/ip.ts'
import { makeNodeView } from '../../model/node.ts'
import { listAddresses } from '../../sys/netlink/interface-addresses.ts'

export async function readFromRules(mode: Mode, config: Config): Promise<Omit<Inputs, 'limits'>> {
  const { readServices } = findMode(mode).leftovers
  if (readServices === undefined) {
    throw new ProxyError(
      'migrate',
      `rules of mode ${mode} do not name services: add --kubeconfig, or --socket of the proxy`,
    )
  }
  const used = await readServices()
  if (used.length === 0) throw new ProxyError('migrate', 'kube-proxy’s rules name no service: add --kubeconfig')
  const name = hostname().toLowerCase()
  const interfaces = await listAddresses()
  const nodeAddresses = interfaces.map(({ ip }) => ip)
  const globalAddresses = interfaces.filter(({ scope }) => scope === 'global').map(({ ip }) => ip)
  const addresses = ([4, 6] as const).flatMap((family) => globalAddresses.find((ip) => familyOf(ip) === family) ?? [])
  const record = { name, addresses, podCidrs: [], zone: '', deleting: false, taints: [] }
  const facts = makeNodeFacts(config, { name, record, interfaceAddresses: nodeAddresses })
  return {
    identity: { node: name, mode, pid: 0, version: sluiceVersion, startedAt: '' },
    settings: makeSettings(config),
    views: used.map(({ family }) => makeNodeView(facts, family)),
    nodeAddresses,
    services: used.flatMap(({ services }) => services),
    slices: used.flatMap(({ slices }) => slices),
  }
}
