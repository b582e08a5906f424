// `sluice history`: why a running proxy synced and what each sync changed; and what is different between two points.

import type { AdminClient } from '../../http/admin-client.ts'
import { parseServiceName } from '../../inspect/service-name.ts'
import { ProxyError } from '../../lib/errors.ts'
import { type Command, type Flags, type Invocation, namespaceFlag, outputFlag } from '../command.ts'
import { proxyFlags, reachProxy } from '../sources/source.ts'
import { formatAnswer } from '../terminal.ts'
import { formatDifference, formatHistory } from './history-text.ts'
import { parsePoint, parseTime } from './time-points.ts'

const defaultLimit = 20

export const historyCommand: Command = {
  name: 'history',
  usage: '[[NAMESPACE/]NAME] [flags] | diff A [B] [flags]',
  about: `Shows the last syncs of a running proxy, the newest last: which object changed, in which version and by which manager, or which
program changed our rules; and which entries were put (+), changed (~), dropped (-) or restored. diff shows which frontends, endpoints and entries
differ between two points: numbers of syncs, RFC 3339 times, HH:MM of the last 24 hours, or times ago such as -10m; B is now if it is not
given. A manager is the name that a client gives itself; who it was is in the audit log of the API server. How far the history
reaches is set by history.size and history.directory of SluiceConfiguration.`,
  flags: [
    namespaceFlag('namespace of the service (default: default)'),
    { name: 'since', value: 'TIME', help: 'only syncs since then: 03:12, -10m, 2026-11-17T03:12:00Z' },
    { name: 'limit', value: 'NUMBER', help: `the last so many syncs (default ${defaultLimit}; with --since all)` },
    { name: 'service', value: 'NAME', help: 'with diff: only this service' },
    ...proxyFlags,
    outputFlag,
  ],
  examples: [
    ['sluice history', 'the last syncs'],
    ['sluice history shop/web --since 03:00', 'what happened to a service since three o’clock'],
    ['sluice history diff 03:10 03:15', 'what changed around 03:12'],
    ['sluice history diff 4700 4711 --service shop/web', 'what changed between two syncs'],
    ['sluice history -o json | jq \'.records[] | select(.notes[].kind == "drift")\'', 'the repairs'],
    ['sluice history --node worker-3 --since -10m', 'the proxy of another node, through the API server'],
  ],
  arguments: { least: 0, most: 3, offered: 'services' },
  run,
}

async function run(invocation: Invocation): Promise<number> {
  const { args, flags } = invocation
  const isDifference = args[0] === 'diff' && args.length > 1
  if (!isDifference && args.length > 1) throw new ProxyError('usage', `unexpected argument "${args[1]}"`)
  const client = await reachProxy(flags)
  if (client === undefined) throw new ProxyError('usage', '--manifests has no running proxy to ask')
  try {
    await (isDifference ? printDifference(client, invocation) : printHistory(client, invocation))
  } finally {
    client.close()
  }
  return 0
}

async function printHistory(client: AdminClient, { args, flags, terminal }: Invocation): Promise<void> {
  const now = Date.now()
  const since = flags.get('since')
  const answer = await client.history({
    service: serviceKey(args[0] ?? '', flags),
    since: since === undefined ? 0 : parseTime(since, now),
    beforeSync: 0,
    afterSync: 0,
    limit: readLimit(flags, since === undefined ? defaultLimit : 100_000),
  })
  const forPeople = () => formatHistory(answer, now, terminal)
  terminal.write(formatAnswer({ kind: 'History', ...answer }, flags.get('output') ?? 'table', forPeople))
}

async function printDifference(client: AdminClient, { args, flags, terminal }: Invocation): Promise<void> {
  const now = Date.now()
  const [, from = '', to = 'now'] = args
  const service = serviceKey(flags.get('service') ?? '', flags)
  const answer = await client.historyDifference(parsePoint(from, now), parsePoint(to, now), service)
  const forPeople = () => formatDifference(answer, terminal)
  terminal.write(formatAnswer({ kind: 'HistoryDifference', ...answer }, flags.get('output') ?? 'table', forPeople))
}

function readLimit(flags: Flags, otherwise: number): number {
  const given = flags.get('limit')
  if (given === undefined) return otherwise
  if (!/^[1-9]\d{0,5}$/.test(given)) throw new ProxyError('usage', `--limit: given "${given}", allowed: 1 to 999999`)
  return Number(given)
}

/** Returns `namespace/name`, or '' for all services. */
const serviceKey = (given: string, flags: Flags): string =>
  given === '' ? '' : (parseServiceName(given, flags.get('namespace') ?? 'default').keys[0] ?? '')
