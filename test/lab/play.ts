// Plays one scenario in the lab: arranges the network, starts servers and the proxy, applies and probes step by step, and deletes all objects.

import { canonicalIp, isLoopback } from '../../src/lib/ip.ts'
import type { Protocol } from '../../src/model/types.ts'
import {
  type Expectation,
  type Manifest,
  type Mode,
  manifestKey,
  type Place,
  type Probe,
  type Scenario,
  type Step,
} from '../scenarios/format.ts'
import { checkPacket, type StickyEndpoints } from './check-packet.ts'
import { type Deviation, type Driver, findDeviation } from './driver.ts'
import { type Arrangement, ipv4, isNodeAddress, type Lab, type Listener } from './lab.ts'
import { inVm } from './vm.ts'

export interface Play {
  readonly lab: Lab
  readonly driver: Driver
  readonly scenario: Scenario
  readonly mode: Mode
  readonly deviations: readonly Deviation[]
  /** Protocols whose packets are sent. Default: all. */
  readonly protocols?: readonly Protocol[]
}

export interface Played {
  /** `F26 blocked client -> LB1: expected drop, but it …` */
  readonly complaints: readonly string[]
  readonly attempts: number
  readonly late: number
  /** The packets that were not sent, each with the reason. */
  readonly unsent: readonly string[]
}

/** Longer than any scenario takes. The error says in which phase a scenario hung. */
const limitMs = inVm ? 240_000 : 100_000

export async function playScenario(play: Play): Promise<Played> {
  const progress = { at: 'arranging' }
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${play.scenario.name} is stuck at ${progress.at}`)), limitMs)
  })
  try {
    return await Promise.race([playThrough(play, progress), late])
  } finally {
    clearTimeout(timer)
  }
}

async function playThrough(play: Play, progress: { at: string }): Promise<Played> {
  const { lab, driver, scenario, mode } = play
  const arrangement = arrangementOf(scenario)
  await lab.arrange(arrangement)
  await lab.serve(listenersOf(scenario, driver.listens !== true))
  progress.at = 'starting the proxy'
  const result: Result = { complaints: [], attempts: 0, late: 0, unsent: [] }
  try {
    await driver.start({
      node: lab.node,
      mode,
      families: scenario.families,
      settings: scenario.node[mode],
      interfaceAddresses: lab.interfaceAddresses(),
    })
    const sticky: StickyEndpoints = new Map()
    const live = new Map<string, Manifest>()
    for (const step of scenario.steps) {
      for (const manifest of step.drop) live.delete(manifestKey(manifest))
      for (const manifest of step.put) live.set(manifestKey(manifest), manifest)
      progress.at = `changing objects ${step.title}`
      await applyStep(driver, step, mode)
      progress.at = `probing ${step.title}`
      await probeStep(play, step, sticky, result)
    }
    progress.at = 'deleting all'
    await driver.apply({ drop: [...live.values()], put: [] })
    await driver.settle()
    for (const left of await driver.holdings())
      result.complaints.push(`all is deleted, but the proxy still holds ${left}`)
  } finally {
    progress.at = 'stopping the proxy'
    await driver.stop()
    progress.at = 'closing servers'
    await lab.unserve()
  }
  return result
}

async function applyStep(driver: Driver, step: Step, mode: Mode): Promise<void> {
  if (step.node !== undefined) await driver.reconfigure(step.node[mode])
  if (step.drop.length + step.put.length > 0) await driver.apply({ drop: step.drop, put: step.put })
  if (step.settle) await driver.settle()
}

async function probeStep(play: Play, step: Step, sticky: StickyEndpoints, result: Result): Promise<void> {
  const { lab, driver, scenario, mode } = play
  const run = async (probe: Probe) => {
    const expected = expectationOf(play, probe)
    if (typeof expected === 'string') {
      result.unsent.push(`${probe.id}: ${expected}`)
      return
    }
    const { complaint, attempts, late } = await checkPacket(lab, probe, expected, sticky)
    result.attempts += attempts
    result.late += late
    if (complaint !== undefined) {
      const where = step.title === '' ? '' : ` (${step.title})`
      result.complaints.push(`${scenario.name} ${probe.id} ${probe.title}${where}: ${complaint}`)
    }
  }
  // Packets that share a source port or an endpoint are sent one after the other.
  const inTurn = (probe: Probe) => probe.sticky !== '' || probe.sourcePort !== 0
  await Promise.all(step.probes.filter((probe) => !inTurn(probe)).map(run))
  for (const probe of step.probes.filter(inTurn)) await run(probe)

  function expectationOf({ deviations, protocols = ['tcp', 'udp', 'sctp'] }: Play, probe: Probe): Expectation | string {
    if (!protocols.includes(probe.protocol)) return `${probe.protocol} is not wanted`
    const concerned = deviations.filter(({ protocol = probe.protocol }) => protocol === probe.protocol)
    const deviation = findDeviation(concerned, scenario.name, probe.id)
    const { snat } = deviation ?? {}
    if (deviation !== undefined && snat === undefined) return deviation.instead ?? deviation.reason
    const expected = snat === undefined ? probe.expect[mode] : { ...probe.expect[mode], snat }
    // The lab does not listen on ports of the node then, so the node itself refuses what passes.
    const refused = driver.listens === true && expected.outcome === 'pass' && isNodeAddress(probe.to)
    return refused ? { outcome: 'reject', snat: undefined } : expected
  }
}

interface Result {
  readonly complaints: string[]
  attempts: number
  late: number
  readonly unsent: string[]
}

interface Endpoint {
  readonly ip: string
  readonly at: Place
  readonly ports: readonly { readonly port: number; readonly protocol: Protocol }[]
}

/** Returns every endpoint of every step. */
function endpointsOf(scenario: Scenario): readonly Endpoint[] {
  return scenario.steps.flatMap((step) =>
    step.put.flatMap((manifest) => {
      const { endpoints = [], ports = [] } = manifest as unknown as {
        endpoints?: { addresses: string[]; nodeName?: string }[]
        ports?: { port: number; protocol: string }[]
      }
      return endpoints.flatMap(({ addresses, nodeName }) => {
        const ip = canonicalIp(addresses[0] ?? '')
        if (ip === undefined) return []
        const home: Place = nodeName === scenario.node.nftables.name ? 'pod' : 'remote'
        const at: Place = isNodeAddress(ip) ? 'node' : home
        return [
          {
            ip,
            at,
            ports: ports.map(({ port, protocol }) => ({ port, protocol: protocol.toLowerCase() as Protocol })),
          },
        ]
      })
    }),
  )
}

export function arrangementOf(scenario: Scenario): Arrangement {
  const probes = scenario.steps.flatMap((step) => step.probes)
  const all = [...endpointsOf(scenario), ...probes.map(({ from, at }) => ({ ip: from, at }))]
  const at = (place: Place) => [...new Set(all.filter((one) => one.at === place).map(({ ip }) => ipv4(ip)))].sort()
  const localPods = at('pod')
  const remotePods = at('remote')
  const twice = localPods.find((ip) => remotePods.includes(ip))
  if (twice !== undefined) throw new Error(`${scenario.name}: ${twice} is on two nodes`)
  const { detector } = scenario.node.nftables
  return {
    localPods,
    remotePods,
    nodeExtras: at('node').filter((ip) => !isNodeAddress(ip)),
    bridged: detector !== 'none' && 'interface' in detector,
  }
}

/** Returns servers for all endpoints, and sinks for packets that reach an address of the node without being redirected. */
function listenersOf(scenario: Scenario, sinks: boolean): readonly Listener[] {
  const listeners = new Map<string, Listener>()
  const add = (listener: Listener) => {
    const key = `${listener.ip} ${listener.port} ${listener.protocol}`
    if (!listeners.has(key)) listeners.set(key, listener)
  }
  for (const { ip, at, ports } of endpointsOf(scenario)) {
    for (const { port, protocol } of ports) {
      add({ ip, port, protocol, at, sink: '' })
    }
  }
  const extras = arrangementOf(scenario).nodeExtras
  for (const { to: ip, port, protocol } of scenario.steps.flatMap((step) => step.probes)) {
    const own = isLoopback(ip) || isNodeAddress(ip) || extras.includes(ipv4(ip))
    if (sinks && own && protocol !== 'sctp') add({ ip, port, protocol, at: 'node', sink: 'the node itself' })
  }
  return [...listeners.values()]
}
