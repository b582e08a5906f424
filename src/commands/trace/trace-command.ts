// `sluice trace`: waits for real packets, follows them through the rules, and sets them beside what `explain` foretells.

import type { AdminClient } from '../../http/admin-client.ts'
import type { PacketStory, TraceQuestion, TraceReport } from '../../http/admin-trace.ts'
import { addNamespace } from '../../inspect/service-name.ts'
import { ProxyError } from '../../lib/errors.ts'
import { type Command, type Flags, type Invocation, namespaceFlag, outputFlag } from '../command.ts'
import { resolvePacketSource } from '../sources/packet-source.ts'
import { proxyFlags, reachProxy } from '../sources/source.ts'
import { formatAnswer } from '../terminal.ts'
import { formatTracedPacket } from './trace-text.ts'

export const traceCommand: Command = {
  name: 'trace',
  usage: '[CLIENT] ADDRESS:PORT[/PROTOCOL] | :NODEPORT | [NAMESPACE/]NAME[:PORT] [flags]',
  about: `Waits for the first packet of a new connection to a service, follows it through the rules of the node, and tells what became of it,
beside what explain foretells; a difference is marked. Makes no traffic itself: connect as usual while it waits. CLIENT is an address or
pod/[NAMESPACE/]NAME; without it, every client counts. The kernel marks only these packets, for this time, by a table that goes away with
the proxy. Exits with 3 if a packet differed, and with 1 if no packet came.`,
  flags: [
    { name: 'seconds', value: 'SECONDS', help: 'wait so long at most (default 30, at most 600)' },
    { name: 'packets', value: 'COUNT', help: 'follow so many packets (default 1, at most 20)' },
    namespaceFlag('namespace of a service or pod that is named without one (default: default)'),
    ...proxyFlags,
    outputFlag,
  ],
  examples: [
    ['sluice trace 10.96.0.10:53/udp', 'the next client that asks this address'],
    ['sluice trace 10.244.1.7 shop/web:http', 'one client and one service'],
    ['sluice trace pod/shop/web-0 shop/db --seconds 120', 'a pod by name'],
    ['sluice trace :30080 --packets 5 -o json', 'five connections to a node port'],
    ['sluice trace shop/web --node worker-3', 'on another node, through the API server'],
  ],
  arguments: { least: 1, most: 2, offered: 'services' },
  run,
}

async function run({ args, flags, terminal }: Invocation): Promise<number> {
  const proxy = await reachProxy(flags)
  if (proxy === undefined) throw new ProxyError('usage', 'only a running proxy can trace packets')
  const question = await readQuestion(args, flags, proxy)
  const output = flags.get('output') ?? 'table'
  const packets: PacketStory[] = []
  const ended = await follow(proxy, question, (report) => {
    if (report.kind === 'waiting') terminal.note(describeWait(report, question))
    if (report.kind !== 'packet') return
    packets.push(report.packet)
    if (output === 'table') terminal.write(formatTracedPacket(report.packet, terminal))
  })
  if (ended.problem !== '') throw new ProxyError('question', ended.problem)
  const isDifferent = packets.some(({ differences }) => differences.length > 0)
  if (output !== 'table') terminal.write(formatAnswer({ kind: 'Trace', packets, lost: ended.lost }, output, () => ''))
  if (ended.lost > 0) terminal.note('The kernel dropped notifications: steps may be missing.\n')
  if (packets.length === 0) throw new ProxyError('question', noPacket(question))
  return isDifferent ? 3 : 0
}

async function readQuestion(args: readonly string[], flags: Flags, proxy: AdminClient): Promise<TraceQuestion> {
  const [client, service] = args.length === 2 ? args : ['', args[0]]
  const from = await resolvePacketSource(new Map([...flags, ['from', client ?? '']]), proxy)
  return {
    target: addNamespace(service ?? '', flags.get('namespace') ?? 'default'),
    from,
    seconds: readNumber(flags, 'seconds', 30, 600),
    packets: readNumber(flags, 'packets', 1, 20),
  }
}

function readNumber(flags: Flags, name: string, fallback: number, most: number): number {
  const value = Number(flags.get(name) ?? fallback)
  if (Number.isInteger(value) && value >= 1 && value <= most) return value
  throw new ProxyError('usage', `--${name}: given "${flags.get(name)}", allowed: a number from 1 to ${most}`)
}

type Ended = Extract<TraceReport, { kind: 'ended' }>

async function follow(
  proxy: AdminClient,
  question: TraceQuestion,
  show: (report: TraceReport) => void,
): Promise<Ended> {
  const stop = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => stop.abort())
  let ended: Ended | undefined
  await proxy.trace(
    question,
    (report) => {
      show(report)
      if (report.kind !== 'ended') return
      ended = report
      stop.abort()
    },
    stop.signal,
  )
  return ended ?? { kind: 'ended', packets: 0, lost: 0, problem: stop.signal.aborted ? '' : 'the proxy has ended' }
}

const nameClient = ({ from }: TraceQuestion): string => (from === '' ? 'any client' : from)

const describeWait = (report: Extract<TraceReport, { kind: 'waiting' }>, question: TraceQuestion): string =>
  `Waiting up to ${report.seconds} s for a new connection from ${nameClient(question)} to ${report.targets.join(', ')} ...\n`

const noPacket = (question: TraceQuestion): string =>
  `no new connection from ${nameClient(question)} to ${question.target} came by within ${question.seconds} s (packets of open connections are not traced)`
