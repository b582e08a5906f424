// `sluice status`: compares, per service, what is wanted, what was programmed and what the kernel holds; and shows the last syncs.

import { describeInvalidManifest } from '../daemon/manifest-problems.ts'
import type { FamilySummary, FrontendSummary, ReportSummary, ServiceSummary, Summary } from '../http/admin.ts'
import { summariseServices } from '../inspect/service-summaries.ts'
import { ProxyError } from '../lib/errors.ts'
import { type Family, familyName } from '../lib/ip.ts'
import { count } from '../lib/plural.ts'
import { describeHolder } from '../model/conflicts.ts'
import { type Command, type Flags, type Invocation, outputFlag } from './command.ts'
import { modeFlag, planInputs, reachFlags, reachProxy, readInputs } from './sources/source.ts'
import { formatAge, formatAnswer, formatTable, shorten, type Terminal } from './terminal.ts'

export const statusCommand: Command = {
  name: 'status',
  summary: 'compare desired, programmed and kernel state per service; last syncs, errors, conflicts, quarantine',
  usage: '[NAMESPACE/NAME] [flags]',
  about: `Compares, for all services or for one, what is wanted with what was programmed and with what the kernel holds now.
The state hash is equal on two nodes that should do the same for every service. Exits with 3 if anything is wrong.`,
  flags: [
    { name: 'no-kernel', help: 'do not read the kernel (cheaper with very many services)' },
    ...reachFlags,
    modeFlag,
    outputFlag,
  ],
  examples: [
    ['sluice status', 'every service of this node'],
    ['sluice status shop/web', 'one service with all its addresses and endpoints'],
    ["sluice status -o json | jq -r '.proxy.families[].stateHash'", 'the hashes, to compare nodes'],
    ['sluice status --node worker-3', 'the proxy of another node, through the API server'],
    ['sluice status --node worker-3 --simulate', 'what a node should have, without asking that node'],
  ],
  arguments: { least: 0, most: 1 },
  run,
}

interface StatusAnswer {
  /** Undefined if no running proxy was asked. */
  readonly proxy: Summary | undefined
  readonly hashes: readonly Pick<FamilySummary, 'family' | 'stateHash'>[]
  readonly services: readonly ServiceSummary[]
}

async function run({ args, flags, terminal }: Invocation): Promise<number> {
  const service = serviceKey(args[0] ?? '')
  const answer = await ask(flags, service)
  if (service !== '' && answer.services.length === 0) {
    throw new ProxyError('question', `there is no service ${service} with a cluster IP here`)
  }
  const describeAnswer = () => describe(answer, service !== '', terminal)
  terminal.write(formatAnswer(answer, flags.get('output') ?? 'table', describeAnswer))
  return isWrong(answer) ? 3 : 0
}

/** `service` is '' for all services. */
async function ask(flags: Flags, service: string): Promise<StatusAnswer> {
  const client = await reachProxy(flags)
  if (client !== undefined) {
    const proxy = await client.summary()
    return { proxy, hashes: proxy.families, services: await client.services(service, !flags.has('no-kernel')) }
  }
  const { context, dryRun } = await planInputs(await readInputs(flags))
  try {
    const hashes = context.views.map(({ family }) => ({ family, stateHash: dryRun.stateHash(family) }))
    return { proxy: undefined, hashes, services: await summariseServices(context, service, false) }
  } finally {
    await dryRun.close()
  }
}

const serviceKey = (given: string): string => (given === '' || given.includes('/') ? given : `default/${given}`)

const isWrong = ({ proxy, services }: StatusAnswer): boolean =>
  proxy?.families.some(({ lastSync }) => lastSync?.ok === false) === true ||
  (proxy?.invalidManifests.length ?? 0) > 0 ||
  services.some((one) => one.wrong.length > 0 || one.quarantine !== '')

function describe(answer: StatusAnswer, isDetailed: boolean, terminal: Terminal): string {
  const details = isDetailed ? answer.services.map((one) => portTable(one, terminal)) : []
  return [
    describeProxy(answer, terminal),
    serviceTable(answer, terminal),
    ...details,
    describeProblems(answer, terminal),
  ]
    .filter((part) => part !== '')
    .join('\n')
}

function describeProxy({ proxy, hashes, services }: StatusAnswer, terminal: Terminal): string {
  const hash = hashes.map(({ family, stateHash }) => `${familyName(family)} ${stateHash}`).join('  ')
  if (proxy === undefined) {
    return `No proxy was asked: this is what should be programmed. ${count(services.length, 'service')}.\nState hash: ${hash}\n`
  }
  const { node, mode, pid, version, startedAt } = proxy
  const age = formatAge(Date.now() - Date.parse(startedAt))
  const lines = [
    `${terminal.paint('bold', `Proxy on ${node}`)}: mode ${mode}, pid ${pid}, version ${version}, up ${age}, ${count(proxy.services, 'service')}`,
    `State hash: ${hash}`,
    ...proxy.families.map(({ family, lastSync }) => describeSync(family, lastSync, terminal)),
  ]
  if (proxy.connections !== undefined) {
    lines.push(`Connections tracked: ${proxy.connections.tracked} of ${proxy.connections.limit}`)
  }
  return `${lines.join('\n')}\n`
}

function describeSync(family: Family, lastSync: ReportSummary | undefined, terminal: Terminal): string {
  if (lastSync === undefined) return `${familyName(family)}: ${terminal.paint('yellow', 'has not synced yet')}`
  const { startedAt, durationMs, full, put, dropped, held, ok, error } = lastSync
  const age = formatAge(Date.now() - Date.parse(startedAt))
  const state = ok ? terminal.paint('green', 'ok') : terminal.paint('red', `FAILED: ${error}`)
  return `${familyName(family)}: last sync ${age} ago, ${state}, ${Math.round(durationMs)} ms, ${full ? 'full' : 'partial'}, put ${put}, dropped ${dropped}, holds ${held}`
}

function serviceTable({ services }: StatusAnswer, terminal: Terminal): string {
  const rows = services.map((one) => [
    one.service,
    familyName(one.family),
    String(one.ports.length),
    String(new Set(one.ports.flatMap(({ endpoints }) => endpoints.map(({ address }) => address))).size),
    String(one.entries),
    describeKernel(one),
    describeState(one, terminal),
  ])
  return formatTable(['SERVICE', 'FAMILY', 'PORTS', 'ENDPOINTS', 'ENTRIES', 'IN THE KERNEL', 'STATE'], rows, terminal)
}

function describeKernel({ inKernel, entries }: ServiceSummary): string {
  if (inKernel === undefined) return 'not checked'
  const found = inKernel.present + inKernel.byName
  const unchecked = inKernel.unchecked
  return unchecked === 0 ? `${found}/${entries}` : `${found}/${entries} (${unchecked} not checked)`
}

function describeState(one: ServiceSummary, terminal: Terminal): string {
  if (one.quarantine !== '') return terminal.paint('red', `quarantined: ${shorten(one.quarantine, 60)}`)
  if (one.wrong.length > 0) {
    return terminal.paint(
      'red',
      `${one.wrong.length} ${one.wrong.length === 1 ? 'entry' : 'entries'} wrong in the kernel`,
    )
  }
  if (one.lost.length > 0) return terminal.paint('yellow', `address not available: ${one.lost[0]}`)
  if (one.pending) return terminal.paint('yellow', 'change waits for a sync')
  const isIdle = one.ports.length > 0 && one.ports.every(({ endpoints }) => endpoints.length === 0)
  return isIdle ? terminal.paint('yellow', 'no endpoints') : terminal.paint('green', 'ok')
}

const describeFrontend = ({ kind, answersAt }: FrontendSummary): string => `${kind} ${answersAt || '(not served)'}`

function portTable({ ports }: ServiceSummary, terminal: Terminal): string {
  const rows = ports.map((port) => [
    `${port.name}/${port.protocol}`,
    port.frontends.map(describeFrontend).join(', ') || '-',
    port.internal,
    port.external,
    port.endpoints.map(({ address }) => address).join(', ') || '-',
    port.endpoints.flatMap(({ address, local }) => (local ? [address] : [])).join(', ') || '-',
    port.affinitySeconds === 0 ? '-' : `${port.affinitySeconds}s`,
  ])
  const heads = ['PORT', 'ADDRESSES', 'INTERNAL', 'EXTERNAL', 'ENDPOINTS', 'LOCAL', 'AFFINITY']
  return formatTable(heads, rows, terminal)
}

function describeProblems({ proxy, services }: StatusAnswer, terminal: Terminal): string {
  const lines = [
    ...(proxy?.invalidManifests ?? []).map(
      (problem) => `invalid manifest ${describeInvalidManifest(problem)}; the objects of its last valid content stay`,
    ),
    ...services.flatMap(({ service, wrong }) => wrong.map((entry) => `${service}: ${entry}`)),
    ...(proxy?.conflicts ?? []).map(
      (conflict) => `${conflict.frontend} is claimed by service ${conflict.loser}, but ${describeHolder(conflict)}`,
    ),
    ...(proxy?.quarantined ?? []).map(
      ({ service, error, attempts, retryAt }) =>
        `${service || 'a leftover'} is quarantined after ${count(attempts, 'attempt')}: ${error}; next try in ${formatAge(Date.parse(retryAt) - Date.now())}`,
    ),
  ]
  return lines.map((line) => `${terminal.paint('red', '!')} ${line}\n`).join('')
}
