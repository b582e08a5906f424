// `sluice dashboard`: serves a page for a running proxy, or for all proxies of a cluster, to browsers on this machine.

import { sluiceVersion } from '../../config/sluice-version.ts'
import { AdminClient, findSocket } from '../../http/admin-client.ts'
import { ProxyError } from '../../lib/errors.ts'
import { createLogger, silentLogger } from '../../lib/log.ts'
import { type Command, type Flag, type Flags, flagValues, type Invocation, noArguments } from '../command.ts'
import { hasDifferences, judgeFleet } from '../nodes/fleet-answer.ts'
import { listServiceNames, readFleet } from '../nodes/fleet-reader.ts'
import { ownCommand } from '../own-program.ts'
import { findKubeconfig, namespaceOfProxies } from '../sources/node-proxy.ts'
import { connectApi, proxyFlags, reachProxy } from '../sources/source.ts'
import { type Dashboard, startDashboard } from './dashboard-server.ts'
import { ProxyFeed } from './proxy-feed.ts'

const ownFlags: readonly Flag[] = [
  {
    name: 'listen',
    value: 'IP:PORT',
    help: 'where the page is served (default 127.0.0.1:0: only for this machine, on any free port)',
  },
  {
    name: 'allow-host',
    value: 'NAME',
    help: 'a name by which browsers may reach the page, besides addresses and localhost; may be given several times',
    repeats: true,
  },
  { name: 'report-namespace', value: 'NAME', help: 'namespace of the reports of the fleet (default sluice-nodes)' },
]

export const dashboardCommand: Command = {
  name: 'dashboard',
  usage: '[flags]',
  about: `Serves a page that shows a running proxy: its services and their traffic, the way of a packet, what changed and what is wrong.
With --kubeconfig the page also shows the proxies of all nodes. The page only reads. It is served on loopback, and only to browsers that
open the URL that is printed, which has a token. Ctrl-C ends it.`,
  flags: [...ownFlags, ...proxyFlags],
  examples: [
    ['sluice dashboard', 'the proxy of this node'],
    ['sluice dashboard --node worker-3', 'the proxy of another node, through the API server'],
    ['sluice dashboard --kubeconfig ~/.kube/config', 'all nodes of a cluster'],
    ['ssh -L 7777:127.0.0.1:7777 worker-3 sluice dashboard --listen 127.0.0.1:7777', 'in a browser on another machine'],
  ],
  arguments: noArguments,
  run,
}

async function run({ flags, terminal }: Invocation): Promise<number> {
  const first = await reachProxy(flags)
  const readsFleet = flags.has('kubeconfig') || flags.has('context') || (first === undefined && !flags.has('socket'))
  const feed = first === undefined ? undefined : new ProxyFeed(reachAgain(first, flags))
  const log = createLogger({ format: 'text', verbosity: 0, write: (line) => terminal.note(line) })
  const dashboard = await startDashboard({
    address: flags.get('listen') ?? '127.0.0.1:0',
    hosts: new Set(flagValues(flags, 'allow-host').map((name) => name.toLowerCase())),
    about: {
      program: ownCommand(),
      flags: pickFlags(flags, ['socket', 'node', 'kubeconfig', 'context', 'proxy-namespace']),
      fleetFlags: readsFleet
        ? pickFlags(flags, ['kubeconfig', 'context', 'report-namespace', 'proxy-namespace'])
        : null,
      hasProxy: feed !== undefined,
      version: sluiceVersion,
    },
    feed,
    readFleet: readsFleet ? () => askFleet(flags) : undefined,
    log,
  })
  terminal.write(`${dashboard.url}\n`)
  terminal.note('Open this URL in a browser. Ctrl-C ends the dashboard.\n')
  await interrupted()
  await dashboard.close()
  return 0
}

/** The first client was reached before the page is served, so that a mistake in the flags is an error of the command. */
function reachAgain(first: AdminClient, flags: Flags): () => Promise<AdminClient> {
  let isFirst = true
  return async () => {
    if (isFirst) {
      isFirst = false
      return first
    }
    // A socket stays where it is; the pod of another node may be replaced.
    if (!flags.has('node')) return new AdminClient(first.path)
    const client = await reachProxy(flags)
    if (client === undefined) throw new ProxyError('no-proxy', 'the flags name no running proxy')
    return client
  }
}

const pickFlags = (flags: Flags, names: readonly string[]): readonly string[] =>
  names.flatMap((name) => (flags.has(name) ? [`--${name}`, flags.get(name) as string] : []))

async function askFleet(flags: Flags) {
  const api = connectApi(findKubeconfig(flags, process.env), flags.get('context'))
  try {
    const namespace = flags.get('report-namespace') ?? 'sluice-nodes'
    const fleet = await readFleet(api, { namespace, proxyNamespace: namespaceOfProxies(flags) })
    const now = Date.now()
    const judged = judgeFleet(fleet, [], now)
    return hasDifferences(judged) ? judgeFleet(fleet, await listServiceNames(api), now) : judged
  } finally {
    api.close()
  }
}

function interrupted(): Promise<void> {
  return new Promise((resolve) => {
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => resolve())
  })
}

/** Serves the page of a proxy that this process, or a child of it, runs. */
export async function startOwnDashboard(proxy: AdminClient): Promise<Dashboard> {
  // A command without --socket asks the only proxy that runs here; with several it fails.
  const found = await findSocket('', {}).catch(() => '')
  const flags = found === proxy.path ? [] : ['--socket', proxy.path]
  return startDashboard({
    address: '127.0.0.1:0',
    hosts: new Set(),
    about: { program: ownCommand(), flags, fleetFlags: null, hasProxy: true, version: sluiceVersion },
    feed: new ProxyFeed(async () => new AdminClient(proxy.path)),
    readFleet: undefined,
    log: silentLogger,
  })
}
