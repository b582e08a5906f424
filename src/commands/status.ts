// `sluice status`: compares, per service, what is wanted, what was programmed and what the kernel holds; and shows the last syncs.

import type { AdminClient } from '../http/admin-client.ts'
import type { Traffic } from '../http/admin-traffic.ts'
import { parseServiceName } from '../inspect/service-name.ts'
import { compareAll } from '../inspect/service-summaries.ts'
import { selectServices } from '../kube/api-objects.ts'
import { ProxyError } from '../lib/errors.ts'
import {
  isWrong,
  matches,
  type SortKey,
  type StatusAnswer,
  type StatusFilter,
  sortKeys,
  sortServices,
} from './answers/status-answer.ts'
import { formatStatus } from './answers/status-text.ts'
import { type Command, type Flags, type Invocation, namespaceFlag, outputFlag } from './command.ts'
import { modeFlag, planInputs, reachFlags, reachProxy, readInputs, withApi } from './sources/source.ts'
import { formatAnswer } from './terminal.ts'
import { watchAnswers } from './watch-answers.ts'

export const statusCommand: Command = {
  name: 'status',
  usage: '[[NAMESPACE/]NAME] [flags]',
  about: `Compares, for all services or for some, what is wanted with what was programmed and with what the kernel holds now: rules, sets,
virtual servers and sockets, those of services and those that all services share. The state hash is equal on two nodes that should do
the same for every service. Exits with 3 if anything is wrong.`,
  flags: [
    namespaceFlag('only services of this namespace'),
    { name: 'all-namespaces', short: 'A', help: 'services of all namespaces (default)' },
    { name: 'selector', short: 'l', value: 'SELECTOR', help: 'only services with these labels: app=web,tier!=cache' },
    {
      name: 'sort-by',
      value: 'FIELD',
      help: `${sortKeys.join(', ')} (default name); all but the name begin with the most or the worst`,
      choices: sortKeys,
    },
    { name: 'watch', short: 'w', help: 'show it again after each change, until Ctrl-C' },
    { name: 'no-kernel', help: 'do not read the kernel (cheaper with very many services)' },
    ...reachFlags,
    modeFlag,
    outputFlag,
  ],
  examples: [
    ['sluice status', 'every service of this node'],
    ['sluice status shop/web', 'one service with all its addresses and endpoints'],
    ['sluice status -n shop -l app=web --sort-by state --watch', 'some services, the worst first, again and again'],
    ["sluice status -o json | jq -r '.families[].stateHash'", 'the hashes, to compare nodes'],
    ['sluice status --node worker-3', 'the proxy of another node, through the API server'],
    ['sluice status --node worker-3 --simulate', 'what a node should have, without asking that node'],
  ],
  arguments: { least: 0, most: 1, offered: 'services' },
  run,
}

async function run({ args, flags, terminal }: Invocation): Promise<number> {
  const service = serviceKey(args[0] ?? '', flags)
  const client = await reachProxy(flags)
  const ask = () => (client === undefined ? compute(flags, service) : askProxy(client, flags, service))
  const format = (answer: StatusAnswer) =>
    formatAnswer({ kind: 'Status', ...answer }, flags.get('output') ?? 'table', () =>
      formatStatus(answer, Date.now(), service !== '', terminal),
    )
  if (flags.has('watch')) return watchAnswers({ ask, format, terminal, exitStatus: exitStatusOf, substance })
  const answer = await ask()
  if (service !== '' && answer.services.length === 0) {
    throw new ProxyError('question', `there is no service ${service} with a cluster IP here`)
  }
  terminal.write(format(answer))
  return exitStatusOf(answer)
}

/** What a watch on a pipe shows again. */
const substance = ({ proxy, families, services }: StatusAnswer): unknown => [
  services,
  families.map(({ stateHash, base, lastSync }) => [stateHash, base, lastSync?.ok]),
  proxy && [proxy.pid, proxy.conflicts, proxy.invalidManifests, proxy.quarantined.map(({ service }) => service)],
]

const exitStatusOf = (answer: StatusAnswer): number => (isWrong(answer) ? 3 : 0)

async function askProxy(client: AdminClient, flags: Flags, service: string): Promise<StatusAnswer> {
  const { node, mode, families, ...proxy } = await client.summary()
  const { base, services } = await client.comparison(service, !flags.has('no-kernel'))
  const selector = flags.get('selector')
  const selected = selector === undefined ? undefined : new Set(await client.select(selector))
  return {
    node,
    mode,
    proxy,
    families: families.map(({ lastSync, ...one }) => {
      const { family, ...shared } = base.find((summary) => summary.family === one.family) ?? { family: one.family }
      return { ...one, lastSync: lastSync ?? null, base: 'entries' in shared ? shared : null }
    }),
    services: choose(services, filterOf(flags, service, selected), flags),
    traffic: await readTraffic(client, filterOf(flags, service, selected)),
  }
}

/** A proxy of an older version has no counters. */
async function readTraffic(client: AdminClient, filter: StatusFilter): Promise<Traffic | null> {
  const traffic = await client.traffic(filter.service).catch(() => null)
  return traffic && { ...traffic, ports: traffic.ports.filter((port) => matches(filter, port.service)) }
}

async function compute(flags: Flags, service: string): Promise<StatusAnswer> {
  const inputs = await readInputs(flags)
  const selector = flags.get('selector')
  const selected =
    selector === undefined ? undefined : new Set(await withApi(flags, (api) => selectServices(api, selector)))
  const { context, dryRun } = await planInputs(inputs)
  try {
    const { services } = await compareAll(context, service, false)
    return {
      node: inputs.identity.node,
      mode: inputs.identity.mode,
      proxy: null,
      families: context.views.map(({ family }) => {
        const stateHash = dryRun.stateHash(family)
        // The hash begins with the number of entries.
        return { family, stateHash, entries: Number.parseInt(stateHash.slice(0, 8), 16), lastSync: null, base: null }
      }),
      services: choose(services, filterOf(flags, service, selected), flags),
      traffic: null,
    }
  } finally {
    await dryRun.close()
  }
}

const filterOf = (flags: Flags, service: string, selected: StatusFilter['selected']): StatusFilter => ({
  service,
  namespace: flags.has('all-namespaces') ? '' : (flags.get('namespace') ?? ''),
  selected,
})

const choose = (services: StatusAnswer['services'], filter: StatusFilter, flags: Flags): StatusAnswer['services'] =>
  sortServices(
    services.filter((one) => matches(filter, one.service)),
    (flags.get('sort-by') as SortKey | undefined) ?? 'name',
  )

/** Returns `namespace/name`, or '' for all services. */
function serviceKey(given: string, flags: Flags): string {
  if (given === '') return ''
  if (flags.has('selector')) throw new ProxyError('usage', 'a service and --selector exclude each other')
  return parseServiceName(given, flags.get('namespace') ?? 'default').keys[0] ?? ''
}
