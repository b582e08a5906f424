// `sluice status`: what is wanted, what was programmed and what the kernel holds, service by service; and how the last syncs went.

import { serviceSummaries } from '../daemon/admin-answers.ts'
import type { FamilySummary, ServiceSummary, Summary } from '../http/admin.ts'
import { ProxyError } from '../lib/errors.ts'
import { familyName } from '../lib/ip.ts'
import { count } from '../lib/plural.ts'
import type { Command, Invocation } from './command.ts'
import { outputFlag } from './command.ts'
import { shorten } from './explain.ts'
import { inputsOf, modeFlag, proxyOf, sourceFlags, stageOf } from './sources/source.ts'
import { age, printed, type Terminal, table } from './terminal.ts'

export const statusCommand: Command = {
  name: 'status',
  summary: 'desired, programmed and in the kernel, per service; last syncs, errors, conflicts, quarantine',
  usage: '[NAMESPACE/NAME] [flags]',
  about: `Compares, for every service or one, what is wanted with what was programmed and with what the kernel holds at this moment.
The state hash is equal on two nodes that are meant to do the same for every service. Exits with 3 if anything is wrong.`,
  flags: [
    { name: 'no-kernel', help: 'do not look at the kernel (cheaper with very many services)' },
    ...sourceFlags,
    modeFlag,
    outputFlag,
  ],
  examples: [
    ['sluice status', 'every service of this node'],
    ['sluice status shop/web', 'one service with all its addresses and endpoints'],
    ["sluice status -o json | jq -r '.proxy.families[].stateHash'", 'the hashes, to compare nodes'],
    ['sluice status --kubeconfig ~/.kube/config --node worker-3', 'what should be there, without asking that node'],
  ],
  takes: [0, 1],
  run,
}

interface Answer {
  /** Undefined if no running proxy was asked. */
  readonly proxy: Summary | undefined
  readonly hashes: readonly Pick<FamilySummary, 'family' | 'stateHash'>[]
  readonly services: readonly ServiceSummary[]
}

async function run(invocation: Invocation): Promise<number> {
  const { flags, terminal } = invocation
  const one = serviceKey(invocation.args[0] ?? '')
  const answer = await ask(invocation, one)
  if (one !== '' && answer.services.length === 0) {
    throw new ProxyError('question', `there is no service ${one} with a cluster IP here`)
  }
  terminal.write(printed(answer, flags.get('output') ?? 'table', () => describe(answer, one !== '', terminal)))
  return wrongs(answer) > 0 ? 3 : 0
}

async function ask(invocation: Invocation, one: string): Promise<Answer> {
  const kernel = !invocation.flags.has('no-kernel')
  const client = await proxyOf(invocation)
  if (client !== undefined) {
    const proxy = await client.summary()
    return { proxy, hashes: proxy.families, services: await client.services(one, kernel) }
  }
  const { stage, twin } = await stageOf(await inputsOf(invocation))
  try {
    const hashes = stage.views.map(({ family }) => ({ family, stateHash: twin.stateHash(family) }))
    return { proxy: undefined, hashes, services: await serviceSummaries(stage, one, false) }
  } finally {
    await twin.close()
  }
}

const serviceKey = (given: string): string => (given === '' || given.includes('/') ? given : `default/${given}`)

function wrongs({ proxy, services }: Answer): number {
  const failing = proxy?.families.filter(({ lastSync }) => lastSync?.ok === false).length ?? 0
  return failing + services.filter((one) => one.wrong.length > 0 || one.quarantine !== '').length
}

function describe(answer: Answer, detailed: boolean, terminal: Terminal): string {
  const parts = [heading(answer, terminal), services(answer.services, terminal)]
  if (detailed) parts.push(...answer.services.map((one) => details(one, terminal)))
  parts.push(problems(answer, terminal))
  return parts.filter((part) => part !== '').join('\n')
}

function heading({ proxy, hashes, services }: Answer, terminal: Terminal): string {
  const hash = hashes.map(({ family, stateHash }) => `${familyName(family)} ${stateHash}`).join('  ')
  if (proxy === undefined) {
    return `No proxy was asked: this is what should be there. ${count(services.length, 'service')}.\nState hash: ${hash}\n`
  }
  const now = Date.now()
  const lines = [
    `${terminal.paint('bold', `Proxy on ${proxy.node}`)}: mode ${proxy.mode}, pid ${proxy.pid}, version ${proxy.version}, up ${age(now - proxy.startedAt)}, ${count(proxy.services, 'service')}`,
    `State hash: ${hash}`,
    ...proxy.families.map(({ family, lastSync }) => {
      if (lastSync === undefined) return `${familyName(family)}: ${terminal.paint('yellow', 'has not synced yet')}`
      const { startedAt, durationMs, full, put, dropped, held, ok, error } = lastSync
      const state = ok ? terminal.paint('green', 'ok') : terminal.paint('red', `FAILED: ${error}`)
      return `${familyName(family)}: last sync ${age(now - startedAt)} ago, ${state}, ${Math.round(durationMs)} ms, ${full ? 'full' : 'partial'}, put ${put}, dropped ${dropped}, holds ${held}`
    }),
  ]
  if (proxy.connections !== undefined) {
    lines.push(`Connections tracked: ${proxy.connections.tracked} of ${proxy.connections.limit}`)
  }
  return `${lines.join('\n')}\n`
}

function services(list: readonly ServiceSummary[], terminal: Terminal): string {
  return table(
    ['SERVICE', 'FAMILY', 'PORTS', 'ENDPOINTS', 'ENTRIES', 'IN THE KERNEL', 'STATE'],
    list.map((one) => [
      one.service,
      familyName(one.family),
      String(one.ports.length),
      String(new Set(one.ports.flatMap(({ endpoints }) => endpoints)).size),
      String(one.entries),
      inKernel(one),
      stateOf(one, terminal),
    ]),
    terminal,
  )
}

function inKernel({ inKernel: tally, entries }: ServiceSummary): string {
  if (tally === undefined) return 'not checked'
  const seen = tally.held + tally.present
  return tally['not checked'] === 0 ? `${seen}/${entries}` : `${seen}/${entries} (${tally['not checked']} not checked)`
}

function stateOf(one: ServiceSummary, terminal: Terminal): string {
  if (one.quarantine !== '') return terminal.paint('red', `quarantined: ${shorten(one.quarantine, 60)}`)
  if (one.wrong.length > 0)
    return terminal.paint('red', `${count(one.wrong.length, 'entry').replace('entrys', 'entries')} wrong in the kernel`)
  if (one.lost.length > 0) return terminal.paint('yellow', `address held by another: ${one.lost[0]}`)
  if (one.pending) return terminal.paint('yellow', 'change waits for a sync')
  const idle = one.ports.length > 0 && one.ports.every(({ endpoints }) => endpoints.length === 0)
  return idle ? terminal.paint('yellow', 'no endpoints') : terminal.paint('green', 'ok')
}

function details(one: ServiceSummary, terminal: Terminal): string {
  const rows = one.ports.map((port) => [
    `${port.name}/${port.protocol}`,
    port.frontends.join(', ') || '-',
    port.internal,
    port.external,
    port.endpoints.join(', ') || '-',
    port.localEndpoints.join(', ') || '-',
    port.affinitySeconds === 0 ? '-' : `${port.affinitySeconds}s`,
  ])
  const heads = ['PORT', 'ADDRESSES', 'INTERNAL', 'EXTERNAL', 'ENDPOINTS', 'LOCAL', 'AFFINITY']
  return table(heads, rows, terminal)
}

function problems({ proxy, services: list }: Answer, terminal: Terminal): string {
  const lines = [
    ...list.flatMap(({ service, wrong }) => wrong.map((what) => `${service}: ${what}`)),
    ...(proxy?.conflicts ?? []).map(
      ({ frontend, winner, loser }) => `${frontend} is claimed by ${loser} but held by the older ${winner}`,
    ),
    ...(proxy?.quarantined ?? []).map(
      ({ service, error, attempts, retryAt }) =>
        `${service || 'a leftover'} is quarantined after ${count(attempts, 'attempt')}: ${error}; next try in ${age(retryAt - Date.now())}`,
    ),
  ]
  return lines.map((line) => `${terminal.paint('red', '!')} ${line}\n`).join('')
}
