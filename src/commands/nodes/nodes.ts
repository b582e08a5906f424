// `sluice nodes`: shows the proxies of all nodes, and which of them differ from most in which services.

import { familyName } from '../../lib/ip.ts'
import { count } from '../../lib/plural.ts'
import { formatAge } from '../../lib/time.ts'
import { formatParagraph, formatTable } from '../answers/table.ts'
import { type Command, type Invocation, noArguments, outputFlag } from '../command.ts'
import { contextFlag, findKubeconfig, namespaceOfProxies, proxyNamespaceFlag } from '../sources/node-proxy.ts'
import { connectApi } from '../sources/source.ts'
import { formatAnswer, type Terminal } from '../terminal.ts'
import { type FleetAnswer, hasDifferences, judgeFleet, type NamedDifference, type NodeAnswer } from './fleet-answer.ts'
import { listServiceNames, readFleet } from './fleet-reader.ts'

const defaultNamespace = 'sluice-nodes'

export const nodesCommand: Command = {
  name: 'nodes',
  usage: '[flags]',
  about: `Shows for every node its proxy, version, mode, state hash, the age of its last sync and of its report, and what is wrong. Nodes are
compared by the Services and EndpointSlices that they have programmed, which are the same on all nodes whatever their mode, zone and
policies; the state hash is of the rules, and differs where those do. Exits with 3 if anything is wrong.`,
  flags: [
    { name: 'kubeconfig', value: 'FILE', help: 'how to reach the API server (default: as kubectl)', file: true },
    contextFlag,
    { name: 'report-namespace', value: 'NAME', help: `namespace of the reports (default ${defaultNamespace})` },
    proxyNamespaceFlag,
    outputFlag,
  ],
  examples: [
    ['sluice nodes', 'all nodes of the current context'],
    ['sluice nodes -o json | jq -r \'.nodes[] | select(.state != "ok") | .node\'', 'the nodes that need attention'],
    ['kubectl sluice nodes --context production', 'the same as a plugin of kubectl'],
  ],
  arguments: noArguments,
  run,
}

async function run({ flags, terminal }: Invocation): Promise<number> {
  const api = connectApi(findKubeconfig(flags, process.env), flags.get('context'))
  try {
    const namespace = flags.get('report-namespace') ?? defaultNamespace
    const fleet = await readFleet(api, { namespace, proxyNamespace: namespaceOfProxies(flags) })
    const now = Date.now()
    const first = judgeFleet(fleet, [], now)
    // Names are looked up only if there are differences to name.
    const names = hasDifferences(first) ? await listServiceNames(api) : []
    const answer = judgeFleet(fleet, names, now)
    terminal.write(formatAnswer(answer, flags.get('output') ?? 'table', () => describe(answer, now, terminal)))
    return isWrong(answer) ? 3 : 0
  } finally {
    api.close()
  }
}

const isWrong = ({ nodes, remarks }: FleetAnswer): boolean =>
  remarks.length > 0 ||
  nodes.some(({ state, problems }) => ['differs', 'failing', 'silent', 'absent'].includes(state) || problems.length > 0)

function describe(answer: FleetAnswer, now: number, terminal: Terminal): string {
  const heads = ['NODE', 'PROXY', 'VERSION', 'MODE', 'SERVICES', 'STATE HASH', 'LAST SYNC', 'REPORT', 'STATE']
  const rows = answer.nodes.map((node) => [
    node.node,
    node.program,
    node.version || '-',
    node.mode || '-',
    node.reportedAt === '' ? '-' : String(node.services),
    node.families.map(({ family, stateHash }) => `${familyName(family)} ${stateHash.slice(-8)}`).join(' ') || '-',
    ago(node.lastSync, now),
    ago(node.reportedAt, now),
    describeState(node, now, terminal),
  ])
  const parts = [formatTable(heads, rows, terminal), describeSums(answer), describeDetails(answer, terminal)]
  return parts.filter((part) => part !== '').join('\n')
}

const ago = (time: string, now: number): string => (time === '' ? '-' : formatAge(now - Date.parse(time)))

function describeState(node: NodeAnswer, now: number, terminal: Terminal): string {
  switch (node.state) {
    case 'ok':
      return node.problems.length === 0
        ? terminal.paint('green', 'ok')
        : terminal.paint('yellow', node.problems.join(', '))
    case 'differs':
      return terminal.paint('red', `differs in ${countDifferences(node)}`)
    case 'failing':
      return terminal.paint('red', node.problems[0] ?? 'fails')
    case 'silent':
      return terminal.paint('red', `no report for ${ago(node.reportedAt, now)}`)
    case 'unreported':
      return terminal.paint('yellow', 'does not report')
    case 'uncompared':
      return 'not compared'
    case 'absent':
      return terminal.paint('red', 'no proxy found')
  }
}

const countDifferences = ({ differences, differencesComplete }: NodeAnswer): string =>
  differencesComplete ? count(differences.length, 'service') : `more than ${count(differences.length, 'service')}`

function describeSums({ nodes }: FleetAnswer): string {
  const compared = nodes.filter(({ families, state }) => families.length > 0 && state !== 'silent')
  const different = compared.filter(({ state }) => state === 'differs')
  return `${count(nodes.length, 'node')}, ${compared.length} compared, ${different.length} different from most\n`
}

const meanings: Readonly<Record<NamedDifference['how'], string>> = {
  other: 'has other content than on most nodes',
  missing: 'is missing there',
  extra: 'is only there',
}

function describeDetails({ nodes, remarks }: FleetAnswer, terminal: Terminal): string {
  const lines = [
    ...nodes.flatMap((node) => [
      ...node.differences.map(
        ({ service, how }) => `${node.node}: ${service || 'a deleted or unknown service'} ${meanings[how]}`,
      ),
      ...(node.comparedAtOtherTime && node.state === 'differs'
        ? [`${node.node} looked at another time than most nodes: a difference may be a change in between`]
        : []),
      ...(node.state === 'ok' ? [] : node.problems.map((problem) => `${node.node}: ${problem}`)),
    ]),
    ...remarks,
  ]
  return lines.map((line) => formatParagraph(`${terminal.paint('red', '!')} ${line}`, terminal, '  ')).join('')
}
