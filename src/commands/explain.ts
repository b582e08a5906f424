// `sluice explain`: says what happens to a packet and why, and whether the kernel holds the entries behind it.

import type { Explanation, Presence } from '../http/admin.ts'
import { explain } from '../inspect/explanation.ts'
import { ProxyError } from '../lib/errors.ts'
import { canonicalIp, hostPort } from '../lib/ip.ts'
import { type Command, type Flags, type Invocation, outputFlag } from './command.ts'
import { listObjects } from './sources/from-api.ts'
import { modeFlag, planInputs, reachFlags, reachProxy, readInputs, withApi } from './sources/source.ts'
import { type Colour, formatAnswer, formatTable, shorten, type Terminal } from './terminal.ts'

export const explainCommand: Command = {
  name: 'explain',
  summary: 'trace one packet: which service, policies, endpoints and kernel objects, and why',
  usage: 'ADDRESS:PORT[/PROTOCOL] | NAMESPACE/NAME[:PORT] [flags]',
  about: `Traces one packet through this node and says why it goes where it goes: the service it is for, each policy and topology
decision, every endpoint with its share or the reason why it is left out, affinity, source translation, and the entries behind it,
with whether the kernel holds them now. A service name is traced on each of its addresses.`,
  flags: [
    { name: 'from', value: 'SOURCE', help: 'an address, node (default), or pod/[NAMESPACE/]NAME' },
    ...reachFlags,
    modeFlag,
    outputFlag,
  ],
  examples: [
    ['sluice explain 10.96.0.10:53/udp', 'ask the proxy of this node; the client is this node'],
    ['sluice explain 10.96.0.10:53/udp --from 10.244.1.7', 'the client is a pod'],
    ['sluice explain shop/web:http --from 203.0.113.9', 'a service by name; the client is outside the cluster'],
    ['sluice explain shop/web --node worker-3', 'ask the proxy of another node, through the API server'],
    ['sluice explain shop/web --node worker-3 --simulate', 'compute the answer for another node, without its proxy'],
    ['sluice explain shop/web --manifests ./deploy -o json', 'before anything runs'],
  ],
  arguments: { least: 1, most: 1 },
  run,
}

async function run({ args, flags, terminal }: Invocation): Promise<number> {
  const target = args[0] ?? ''
  const from = await resolveSource(flags)
  const answers = await ask(flags, target, from)
  if (answers.length === 0) {
    throw new ProxyError('question', `${target} has no address of the family of ${from || 'this node'} here`)
  }
  const describeAll = () => answers.map((answer) => describe(answer, terminal)).join('\n')
  terminal.write(formatAnswer(answers, flags.get('output') ?? 'table', describeAll))
  return 0
}

async function ask(flags: Flags, target: string, from: string): Promise<readonly Explanation[]> {
  // A running proxy answers only for its own mode.
  const proxy = flags.has('mode') ? undefined : await reachProxy(flags)
  if (proxy !== undefined) return proxy.explain({ target, from })
  const inputs = await readInputs(flags)
  const mode = (flags.get('mode') as typeof inputs.identity.mode | undefined) ?? inputs.identity.mode
  const { context, dryRun } = await planInputs({ ...inputs, identity: { ...inputs.identity, mode } })
  try {
    return await explain(context, { target, from })
  } finally {
    await dryRun.close()
  }
}

/** Returns the address that --from names; '' for the node itself. */
async function resolveSource(flags: Flags): Promise<string> {
  const given = flags.get('from') ?? ''
  if (given === '' || given === 'node') return ''
  const ip = canonicalIp(given)
  if (ip !== undefined) return ip
  const pod = /^pod\/(?:([a-z0-9.-]+)\/)?([a-z0-9.-]+)$/.exec(given)
  if (pod === null) {
    throw new ProxyError('question', `--from: "${given}" is not an address, node, or pod/[NAMESPACE/]NAME`)
  }
  if (!['kubeconfig', 'manifests', 'node', 'context'].some((name) => flags.has(name))) {
    throw new ProxyError(
      'question',
      '--from pod/…: a proxy does not know pods by name; add --kubeconfig, or give the address',
    )
  }
  return findPodAddress(flags, pod[1] ?? 'default', pod[2] ?? '')
}

async function findPodAddress(flags: Flags, namespace: string, name: string): Promise<string> {
  const [pod] = await withApi(flags, (api) =>
    listObjects(api, `/api/v1/namespaces/${namespace}/pods`, { fieldSelector: `metadata.name=${name}` }),
  )
  const address = canonicalIp((pod as { status?: { podIP?: string } } | undefined)?.status?.podIP ?? '')
  if (address === undefined) throw new ProxyError('question', `there is no pod ${namespace}/${name} with an address`)
  return address
}

const colours: Readonly<Record<Explanation['verdict'], Colour>> = {
  forward: 'green',
  reject: 'red',
  drop: 'red',
  pass: 'yellow',
}

const origins = { pod: 'a pod of this node', node: 'this node', outside: 'outside this node' } as const

function describe(answer: Explanation, terminal: Terminal): string {
  const { packet, verdict } = answer
  const target = `${hostPort(packet.to, packet.port)}/${packet.protocol}`
  const heading = `${packet.from} (${origins[packet.origin]}) -> ${target}, on ${answer.node}, mode ${answer.mode}`
  const lines = [
    terminal.paint('bold', heading),
    `  ${terminal.paint(colours[verdict], describeVerdict(answer))}`,
    ...answer.steps.map((step) => `  - ${step}`),
    ...answer.remarks.map((remark) => `  ${terminal.paint('yellow', '!')} ${remark}`),
  ]
  return [`${lines.join('\n')}\n`, endpointTable(answer, terminal), entryTable(answer, terminal)]
    .filter((part) => part !== '')
    .join('\n')
}

function endpointTable({ endpoints }: Explanation, terminal: Terminal): string {
  const rows = endpoints.map(({ address, node, probability, snat, why }) => {
    const isUsed = probability > 0
    const share = isUsed ? `${(probability * 100).toFixed(1)}%` : '-'
    const source = snat ? 'this node' : 'the client'
    return [`  ${address}`, node || '-', share, isUsed ? source : '-', why]
  })
  return formatTable(['  ENDPOINT', 'NODE', 'SHARE', 'SOURCE SEEN', 'WHY'], rows, terminal)
}

function entryTable({ entries }: Explanation, terminal: Terminal): string {
  const rows = entries.map(({ id, digest, kernel }) => [
    `  ${id}`,
    shorten(digest.trim().replaceAll('\n', ' | '), 60),
    describePresence(kernel, terminal),
  ])
  return formatTable(['  KERNEL OBJECT', 'CONTENT', 'IN THE KERNEL'], rows, terminal)
}

function describeVerdict(answer: Explanation): string {
  const service = answer.service === '' ? '' : ` by ${answer.service}${answer.frontend && ` (${answer.frontend})`}`
  const used = answer.endpoints.filter(({ probability }) => probability > 0).length
  switch (answer.verdict) {
    case 'forward': {
      const to = used === 1 ? 'its one endpoint' : `one of ${used} endpoints`
      const affinity = answer.affinitySeconds > 0 ? `, the same for ${answer.affinitySeconds} s (ClientIP)` : ''
      return `forwarded${service} to ${to}${affinity}; source rewritten: ${answer.snat}`
    }
    case 'reject':
      return `rejected${service}: ${answer.reason}`
    case 'drop':
      return `dropped${service}: ${answer.reason}`
    case 'pass':
      return `left alone: ${answer.reason}`
  }
}

const presences: Readonly<Record<Presence, readonly [colour: Colour | undefined, text: string]>> = {
  present: ['green', 'yes'],
  byName: ['green', 'yes (by name)'],
  unchecked: [undefined, 'not checked'],
  missing: ['red', 'MISSING'],
  differs: ['red', 'DIFFERS'],
}

function describePresence(presence: Presence, terminal: Terminal): string {
  const [colour, text] = presences[presence]
  return colour === undefined ? text : terminal.paint(colour, text)
}
