// Reads the scenario files, expands their shorthand to API objects, and adds the twins of each scenario.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseAllDocuments } from 'yaml'
import { canonicalIp, contains, type Family, familyOf, isLoopback, parseCidr, splitHostPort } from '../../src/lib/ip.ts'
import type { Protocol } from '../../src/model/types.ts'
import { expandObject, sliceKey } from './expand.ts'
import type { Expectation, Manifest, Mode, Place, Probe, Scenario, Step } from './format.ts'
import { manifestKey } from './format.ts'
import { type NodePatch, nodeSettings } from './node-settings.ts'
import { type Json, toIpv6, toUdp } from './twins.ts'

const modes: readonly Mode[] = ['nftables', 'iptables', 'ipvs', 'userspace']

interface RawPacket {
  id: string
  what: string
  from: string
  to: string
  at?: Place
  sourcePort?: number
  sticky?: string
  count?: number
  expect: Expectation['outcome']
  snat?: boolean | 'hairpin'
  ipv6?: Partial<RawPacket>
  udp?: Partial<RawPacket>
  nftables?: Partial<RawPacket>
  iptables?: Partial<RawPacket>
  ipvs?: Partial<RawPacket>
  userspace?: Partial<RawPacket>
}

interface RawStep {
  title?: string
  apply?: Json[]
  delete?: string[]
  node?: NodePatch
  settle?: boolean
  packets?: RawPacket[]
}

interface RawScenario {
  name: string
  title: string
  modes?: Mode[]
  needs?: string[]
  families?: Family[]
  twins?: { ipv6?: boolean; udp?: boolean }
  node?: NodePatch
  objects?: Json[]
  packets?: RawPacket[]
  steps?: RawStep[]
}

const fields = new Set(['name', 'title', 'modes', 'needs', 'families', 'twins', 'node', 'objects', 'packets', 'steps'])

let loaded: readonly Scenario[] | undefined

/** Returns the whole corpus with all twins, in the order of the files. In a VM it is read from JSON, since YAML takes long there. */
export function loadScenarios(): readonly Scenario[] {
  const ready = process.env.SLUICE_SCENARIOS
  loaded ??= ready === undefined ? readFolder() : (JSON.parse(readFileSync(ready, 'utf8')) as readonly Scenario[])
  return loaded
}

function readFolder(folder = import.meta.dirname): readonly Scenario[] {
  const files = readdirSync(folder)
    .filter((name) => name.endsWith('.yaml'))
    .sort()
  const scenarios = files.flatMap((file) => loadScenarioText(file, readFileSync(join(folder, file), 'utf8')))
  const names = new Set<string>()
  for (const { name, file } of scenarios) {
    if (names.has(name)) throw new Error(`${file}: there is already a scenario called ${name}`)
    names.add(name)
  }
  return scenarios
}

export function loadScenarioText(file: string, text: string): readonly Scenario[] {
  return parseAllDocuments(text, { merge: true }).flatMap((document) => {
    const [error] = document.errors
    if (error !== undefined) throw new Error(`${file}: ${error.message}`)
    const raw = document.toJS() as RawScenario
    for (const field of Object.keys(raw)) {
      if (!fields.has(field)) throw new Error(`${file}: ${raw.name}: unknown field ${field}`)
    }
    return withTwins(file, raw)
  })
}

function withTwins(file: string, raw: RawScenario): Scenario[] {
  const families = raw.families ?? [4]
  const ipv6 = families.length === 1 && raw.twins?.ipv6 !== false
  const udp = !/\d\/(udp|sctp)\b/.test(JSON.stringify(raw)) && raw.twins?.udp !== false
  const plain = raw as unknown as Json
  const make = (value: Json, suffix: string, twin: { ipv6: boolean; udp: boolean }) => {
    const scenario = value as unknown as RawScenario
    try {
      return readScenario(file, { ...scenario, name: scenario.name + suffix }, twin)
    } catch (error) {
      throw new Error(`${file}: ${raw.name}${suffix}: ${(error as Error).message}`, { cause: error })
    }
  }
  return [
    make(plain, '', { ipv6: false, udp: false }),
    ...(udp ? [make(toUdp(plain), '.udp', { ipv6: false, udp: true })] : []),
    ...(ipv6 ? [make(toIpv6(plain), '.v6', { ipv6: true, udp: false })] : []),
    ...(ipv6 && udp ? [make(toUdp(toIpv6(plain)), '.v6.udp', { ipv6: true, udp: true })] : []),
  ]
}

function readScenario(file: string, raw: RawScenario, twin: { ipv6: boolean; udp: boolean }): Scenario {
  const families: readonly Family[] = twin.ipv6 ? [6] : (raw.families ?? [4])
  const objects = new Objects(families[0] as Family)
  const patches: NodePatch[] = [raw.node ?? {}]
  const settings = () =>
    Object.fromEntries(
      modes.map((mode) => [mode, nodeSettings(mode, families, patches)]),
    ) as unknown as Scenario['node']
  const node = settings()
  const first: RawStep = { apply: raw.objects ?? [], packets: raw.packets ?? [] }
  const steps: Step[] = []
  for (const step of [first, ...(raw.steps ?? [])]) {
    if (step.node !== undefined) patches.push(step.node)
    steps.push({
      title: step.title ?? '',
      drop: (step.delete ?? []).map((name) => objects.remove(name)),
      put: (step.apply ?? []).map((object) => objects.put(object)),
      node: step.node === undefined ? undefined : settings(),
      settle: step.settle ?? true,
      probes: (step.packets ?? []).map((packet) =>
        readPacket({ ...packet, ...(twin.ipv6 ? packet.ipv6 : {}), ...(twin.udp ? packet.udp : {}) }, objects, node),
      ),
    })
  }
  const probes = steps.flatMap((step) => step.probes)
  const ids = probes.map((probe) => probe.id)
  if (new Set(ids).size < ids.length) throw new Error(`a packet id occurs twice: ${ids.sort().join(' ')}`)
  return {
    name: raw.name,
    file,
    title: raw.title,
    modes: raw.modes ?? modes,
    needs: raw.needs ?? [],
    families,
    protocols: [...new Set(probes.map((probe) => probe.protocol))],
    node,
    steps,
  }
}

/** The objects that exist at a step. Each keeps its identity until it is deleted. */
class Objects {
  readonly #live = new Map<string, { manifest: Manifest; serial: number }>()
  readonly #homes = new Map<string, string>()
  readonly #family: Family
  #serial = 0

  constructor(family: Family) {
    this.#family = family
  }

  put(value: Json): Manifest {
    const fresh = expandObject(value, this.#serial, this.#family)
    const key = manifestKey(fresh)
    const serial = this.#live.get(key)?.serial ?? this.#serial
    const manifest = expandObject(value, serial, this.#family)
    this.#serial++
    const versioned = { ...manifest, metadata: { ...manifest.metadata, resourceVersion: String(this.#serial) } }
    this.#live.set(key, { manifest: versioned, serial })
    for (const endpoint of (manifest.endpoints ?? []) as { addresses: string[]; nodeName?: string }[]) {
      const ip = canonicalIp(endpoint.addresses[0] ?? '')
      if (ip !== undefined) this.#homes.set(ip, endpoint.nodeName ?? '')
    }
    return versioned
  }

  /** `service ns/name` or `slice ns/service#suffix`. */
  remove(name: string): Manifest {
    const [kind, object] = name.split(' ') as [string, string]
    const key = kind === 'service' ? `Service ${object}` : `EndpointSlice ${sliceKey(object)}`
    const live = this.#live.get(key)
    if (live === undefined) throw new Error(`cannot delete ${name}: it does not exist`)
    this.#live.delete(key)
    return live.manifest
  }

  /** Returns the node of the address according to the slices so far; undefined if none has it. */
  home(ip: string): string | undefined {
    return this.#homes.get(ip)
  }
}

const podRanges = ['10.0.0.0/8', 'fd00:10::/32'].map((text) => parseCidr(text)!)

function readPacket(packet: RawPacket, objects: Objects, node: Scenario['node']): Probe {
  const match = /^(.*)\/(tcp|udp|sctp)$/.exec(packet.to)
  const target = match === null ? undefined : splitHostPort(match[1] as string)
  if (match === null || target === undefined) throw new Error(`${packet.id}: ${packet.to} is not a valid destination`)
  const from = canonicalIp(packet.from)
  const to = canonicalIp(target.host)
  if (from === undefined || to === undefined)
    throw new Error(`${packet.id}: ${packet.from} or ${packet.to} is not a valid address`)
  if (familyOf(from) !== familyOf(to)) throw new Error(`${packet.id}: source and destination are of different families`)
  return {
    id: packet.id,
    title: packet.what,
    from,
    at: packet.at ?? placeOf(from, objects, node),
    to,
    port: target.port,
    protocol: match[2] as Protocol,
    sourcePort: packet.sourcePort ?? 0,
    sticky: packet.sticky ?? '',
    count: packet.count ?? (packet.sticky === undefined ? 0 : 16),
    expect: Object.fromEntries(
      modes.map((mode) => [mode, readExpectation({ ...packet, ...packet[mode] })]),
    ) as unknown as Probe['expect'],
  }
}

function placeOf(from: string, objects: Objects, node: Scenario['node']): Place {
  const { name, addresses } = node.nftables
  if (isLoopback(from) || addresses.includes(from)) return 'node'
  const home = objects.home(from)
  if (home !== undefined) return home === name ? 'pod' : 'remote'
  return podRanges.some((range) => contains(range, from)) ? 'pod' : 'outside'
}

function readExpectation(packet: RawPacket): Expectation {
  if (!Array.isArray(packet.expect)) {
    if (!['reject', 'drop', 'pass'].includes(packet.expect as string)) {
      throw new Error(`${packet.id}: ${JSON.stringify(packet.expect)} is not a valid expectation`)
    }
    return { outcome: packet.expect, snat: undefined }
  }
  if (packet.snat === undefined) throw new Error(`${packet.id}: snat is missing`)
  return { outcome: [...packet.expect].sort(), snat: packet.snat }
}
