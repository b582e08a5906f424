// `sluice flows`: lists who talks to which service and endpoint, and follows flows as they begin and end.

import { flowVerdicts } from '../../engine/flows/flow-verdicts.ts'
import type { AdminClient } from '../../http/admin-client.ts'
import type { FlowCoverage, FlowEvent, FlowQuery } from '../../http/admin-flows.ts'
import { parseServiceName } from '../../inspect/service-name.ts'
import { ProxyError } from '../../lib/errors.ts'
import { canonicalIp, parseCidr } from '../../lib/ip.ts'
import { formatTime, systemClock } from '../../lib/time.ts'
import { type Command, type Flags, flagValues, type Invocation, namespaceFlag, outputFlag } from '../command.ts'
import { proxyFlags, reachProxy } from '../sources/source.ts'
import { answerVersion, formatAnswer, type Terminal } from '../terminal.ts'
import { describeCoverage, formatFlowLine, formatFlows } from './flow-text.ts'

export const flowsCommand: Command = {
  name: 'flows',
  usage: '[SERVICE] [flags]',
  about: `Shows who talks to which service and endpoint on the node of a running proxy: since when, how much, and how it ended. With --follow,
prints flows as they begin and end, and also packets that a rule rejects or drops, with the rule. The proxy watches flows only while
someone follows. If there are too many flows, it follows a share of them and says so.`,
  flags: [
    { name: 'follow', short: 'f', help: 'print flows as they begin and end, until Ctrl-C' },
    { name: 'from', value: 'CLIENT', help: 'only flows of this client: an address, a CIDR or pod/[NAMESPACE/]NAME' },
    {
      name: 'verdict',
      value: 'VERDICT',
      help: 'only flows with this verdict; may be given several times',
      choices: flowVerdicts,
      repeats: true,
    },
    { name: 'limit', value: 'COUNT', help: 'show at most so many flows, the newest (default 1000)' },
    namespaceFlag('namespace of a service or pod that is named without one (default: default)'),
    ...proxyFlags,
    outputFlag,
  ],
  examples: [
    ['sluice flows', 'all flows to services on this node'],
    ['sluice flows shop/web --from 10.244.1.7', 'those of one client to one service'],
    ['sluice flows --follow --verdict rejected --verdict dropped', 'wait for packets that rules refuse'],
    ['sluice flows --follow -o json >> flows.jsonl', 'export flows: one JSON object per line'],
    ['sluice flows --node worker-3', 'those of another node, through the API server'],
  ],
  arguments: { least: 0, most: 1, offered: 'services' },
  run,
}

async function run({ args, flags, terminal }: Invocation): Promise<number> {
  const query = readQuery(args[0] ?? '', flags)
  const output = flags.get('output') ?? 'table'
  if (flags.has('follow') && output === 'yaml') throw new ProxyError('usage', '--follow prints lines: use -o json')
  const proxy = await reachProxy(flags)
  if (proxy === undefined) throw new ProxyError('usage', 'only a running proxy knows flows')
  if (flags.has('follow')) return follow(proxy, query, output, terminal)
  const list = await proxy.flows(query)
  const describe = () => formatFlows(list, terminal, systemClock.now())
  terminal.write(formatAnswer({ kind: 'FlowList', ...list }, output, describe))
  if (output === 'table') terminal.note(describeCoverage(list.coverage))
  return 0
}

const defaultLimit = 1_000

function readQuery(service: string, flags: Flags): FlowQuery {
  const namespace = flags.get('namespace') ?? 'default'
  const limit = Number(flags.get('limit') ?? defaultLimit)
  if (!Number.isInteger(limit) || limit < 1) {
    throw new ProxyError('usage', `--limit: given "${flags.get('limit')}", allowed: a number from 1`)
  }
  return {
    service: nameService(service, namespace),
    from: nameClient(flags),
    verdicts: flagValues(flags, 'verdict'),
    limit,
  }
}

function nameService(text: string, namespace: string): string {
  if (text === '') return ''
  const { keys, port } = parseServiceName(text, namespace)
  return port === '' ? (keys[0] ?? '') : `${keys[0]}:${port}`
}

function nameClient(flags: Flags): string {
  const given = flags.get('from') ?? ''
  if (given === '' || canonicalIp(given) !== undefined || parseCidr(given) !== undefined) return given
  const pod = /^pods?\/(?:([a-z0-9.-]+)\/)?([a-z0-9.-]+)$/.exec(given)
  if (pod !== null) return `${pod[1] ?? flags.get('namespace') ?? 'default'}/${pod[2]}`
  throw new ProxyError('question', `--from: "${given}" is not an address, a CIDR or pod/[NAMESPACE/]NAME`)
}

async function follow(proxy: AdminClient, query: FlowQuery, output: string, terminal: Terminal): Promise<number> {
  const stop = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => stop.abort())
  const show = output === 'json' ? printJson(terminal) : printLines(terminal)
  await proxy.followFlows(query, show, stop.signal)
  if (!stop.signal.aborted) throw new ProxyError('admin', `the proxy at ${proxy.path} has ended`)
  return 0
}

/** One object per line; coverage is a line of its own, so that a reader of a file also knows what is missing. */
const printJson = (terminal: Terminal) => (event: FlowEvent) => {
  const { kind, ...content } = event
  const kinds = { flow: 'FlowEvent', coverage: 'FlowCoverageEvent' } as const
  const line = { apiVersion: answerVersion, kind: kinds[kind], time: formatTime(systemClock.now()), ...content }
  terminal.write(`${JSON.stringify(line)}\n`)
}

function printLines(terminal: Terminal): (event: FlowEvent) => void {
  let said = ''
  const say = (coverage: FlowCoverage) => {
    const text = describeCoverage(coverage)
    if (text !== said) terminal.note(text)
    said = text
  }
  return (event) => {
    if (event.kind === 'coverage') say(event.coverage)
    else terminal.write(formatFlowLine(event.flow, terminal, systemClock.now()))
  }
}
