// Traces every packet of a scenario with the model alone (decode, resolve, trace) and compares the results with the scenario file.

import { expect } from 'vitest'
import { findMode } from '../../src/backend/modes.ts'
import type { ProxyMode } from '../../src/backend/proxy-mode.ts'
import { decodeEndpointSlice } from '../../src/kube/decode/decode-endpoint-slice.ts'
import { decodeService } from '../../src/kube/decode/decode-service.ts'
import { contains, type Family, familyOf, parseCidr } from '../../src/lib/ip.ts'
import { type Claimant, compareClaimants, frontendKey, rankOf, withoutFrontends } from '../../src/model/conflicts.ts'
import type { ModeBehaviour } from '../../src/model/mode-behaviour.ts'
import type { Outcome, Packet } from '../../src/model/packet.ts'
import { reservedHolder } from '../../src/model/reserved-addresses.ts'
import { trace } from '../../src/model/trace.ts'
import type { NodeView, ServicePort, ServiceRecord, SliceRecord } from '../../src/model/types.ts'
import {
  type Expectation,
  type Manifest,
  type Mode,
  manifestKey,
  type NodeSettings,
  type Probe,
  type Scenario,
} from '../scenarios/format.ts'
import { addressesOf, nodeView } from '../scenarios/node-facts.ts'
import { resolve } from '../support/resolve.ts'

/** `mode` names the expectations; `proxyMode` answers, which is usually the mode of that name. */
export function checkTraces(scenario: Scenario, mode: Mode, proxyMode: ProxyMode = findMode(mode)): void {
  const objects = new Map<string, Manifest>()
  let settings = scenario.node[mode]
  for (const step of scenario.steps) {
    for (const manifest of step.drop) objects.delete(manifestKey(manifest))
    for (const manifest of step.put) objects.set(manifestKey(manifest), manifest)
    settings = step.node?.[mode] ?? settings
    for (const probe of step.probes) {
      const outcome = traceProbe([...objects.values()], settings, probe, proxyMode.behaviour(settings))
      const message = `${probe.id} ${probe.title}\n${outcome.steps.join('\n')}`
      expect(summarise(outcome, probe), message).toEqual(wanted(probe, mode))
    }
  }
}

function traceProbe(
  objects: readonly Manifest[],
  settings: NodeSettings,
  probe: Probe,
  behaviour: ModeBehaviour,
): Outcome {
  const family = familyOf(probe.to)
  const context = {
    ports: portsOf(objects, settings, family),
    node: nodeView(settings, family),
    nodeAddresses: nodeIps(settings, probe),
  }
  return trace(context, packetOf(probe, settings), behaviour)
}

/** All service ports. Only the service with the best right has a contested frontend. */
function portsOf(objects: readonly Manifest[], settings: NodeSettings, family: Family): readonly ServicePort[] {
  const decoded = <R>(kind: string, decode: (json: unknown) => { record: R | undefined }) =>
    objects.filter((object) => object.kind === kind).flatMap((object) => decode(object).record ?? [])
  const services = decoded<ServiceRecord>('Service', decodeService)
  const slices = decoded<SliceRecord>('EndpointSlice', decodeEndpointSlice)
  const node = nodeView(settings, family)
  const resolved = services.map((record) => {
    const allowed = resolve(record, slices, node).map((port) => withoutFrontends(port, refusedOf(port, slices, node)))
    return { record, ports: allowed }
  })
  const holders = new Map<string, Claimant>()
  for (const { record, ports } of resolved) {
    for (const { port, frontend } of ports.flatMap((port) => port.frontends.map((frontend) => ({ port, frontend })))) {
      const key = frontendKey(frontend, port.protocol)
      const claimant = { record, rank: rankOf(frontend.kind, 'kind') }
      const holder = holders.get(key)
      if (holder === undefined || compareClaimants(claimant, holder) < 0) holders.set(key, claimant)
    }
  }
  return resolved.flatMap(({ record, ports }) =>
    ports.map((port) => {
      const keys = port.frontends.map((frontend) => frontendKey(frontend, port.protocol))
      return withoutFrontends(port, new Set(keys.filter((key) => holders.get(key)?.record.key !== record.key)))
    }),
  )
}

/** The keys that are reserved, and external addresses that are pods of other services. */
function refusedOf(port: ServicePort, slices: readonly SliceRecord[], node: NodeView): ReadonlySet<string> {
  const pods = (own: boolean) =>
    slices
      .filter(({ service }) => (service === port.service) === own)
      .flatMap((slice) =>
        [...slice.endpoints]
          .filter(({ ip }) => isInPodNetwork(node, ip))
          .flatMap(({ ip }) => slice.ports.map((one) => frontendKey({ ip, port: one.port }, one.protocol))),
      )
  const [own, others] = [new Set(pods(true)), new Set(pods(false))]
  const refused = port.frontends.filter((frontend) => {
    const key = frontendKey(frontend, port.protocol)
    const isExternal = frontend.kind === 'external-ip' || frontend.kind === 'load-balancer'
    if (isExternal && others.has(key) && !own.has(key)) return true
    return reservedHolder(port, frontend, key, node) !== undefined
  })
  return new Set(refused.map((frontend) => frontendKey(frontend, port.protocol)))
}

function isInPodNetwork({ local }: NodeView, ip: string): boolean {
  const cidr = local?.kind === 'cidr' ? parseCidr(local.cidr) : undefined
  return cidr !== undefined && contains(cidr, ip)
}

/** A source that the scenario puts on the node is an address of the node. */
function nodeIps(settings: NodeSettings, probe: Probe): readonly string[] {
  const own = addressesOf(settings, familyOf(probe.to))
  return probe.at === 'node' && !own.includes(probe.from) ? [...own, probe.from] : own
}

function packetOf(probe: Probe, settings: NodeSettings): Packet {
  const { from, to, port, protocol, at } = probe
  const origin = at === 'pod' || at === 'node' ? at : 'outside'
  const bridged = settings.detector !== 'none' && 'interface' in settings.detector
  const entry = { pod: bridged ? 'br-pods' : 'pod0', node: undefined, remote: 'far', outside: 'world' }[at]
  return { from, to, port, protocol, origin, ...(entry === undefined ? {} : { inInterface: entry }) }
}

/** The verdict; or whether the source is rewritten, by endpoint, and whether the client keeps its endpoint. */
type Summary = { verdict: string } | { endpoints: Record<string, boolean>; affinity: boolean }

function summarise(outcome: Outcome, probe: Probe): Summary {
  if (outcome.verdict !== 'forward') return { verdict: outcome.verdict }
  return {
    endpoints: Object.fromEntries(outcome.endpoints.map(({ address, snat }) => [address, snat])),
    // A scenario states affinity only for some packets of a service.
    affinity: probe.sticky === '' ? false : outcome.affinity > 0,
  }
}

function wanted(probe: Probe, mode: Mode): Summary {
  const { outcome, snat: stated }: Expectation = probe.expect[mode]
  if (typeof outcome === 'string') return { verdict: outcome }
  // The scenarios state what holds in every mode. Userspace mode hides clients and refuses SCTP for every packet.
  if (mode === 'userspace' && probe.protocol === 'sctp') return { verdict: 'reject' }
  const snat = mode === 'userspace' ? true : stated
  const rewritten = (endpoint: string) =>
    snat === 'hairpin' ? endpoint.replace(/:\d+$/, '').replace(/[[\]]/g, '') === probe.from : snat === true
  return {
    endpoints: Object.fromEntries(outcome.map((endpoint) => [endpoint, rewritten(endpoint)])),
    affinity: probe.sticky !== '',
  }
}
