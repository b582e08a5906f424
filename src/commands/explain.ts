// `sluice explain`: what becomes of a packet, and why, in the words of the model and with the kernel's own word.

import type { Explanation, Presence } from '../http/admin.ts'
import { explain } from '../inspect/explanation.ts'
import { ProxyError } from '../lib/errors.ts'
import { canonicalIp, hostPort } from '../lib/ip.ts'
import type { Command, Invocation } from './command.ts'
import { outputFlag } from './command.ts'
import { inputsOf, modeFlag, proxyOf, readerOf, sourceFlags, stageOf } from './sources/source.ts'
import { type Colour, printed, type Terminal, table } from './terminal.ts'

export const explainCommand: Command = {
  name: 'explain',
  summary: 'follow one packet: which service, which endpoints, which policies, which kernel objects, and why',
  usage: 'ADDRESS:PORT[/PROTOCOL] | NAMESPACE/NAME[:PORT] [flags]',
  about: `Follows one packet through this node and says why it goes where it goes: the service it meets, each policy and topology
decision, every endpoint with its share or the reason why it is left out, affinity, source translation, and the entries behind it,
with whether the kernel holds them at this moment. A service by name is followed on each of its addresses.`,
  flags: [
    { name: 'from', value: 'SOURCE', help: 'an address, node (default), or pod/[NAMESPACE/]NAME' },
    ...sourceFlags,
    modeFlag,
    outputFlag,
  ],
  examples: [
    ['sluice explain 10.96.0.10:53/udp', 'ask the proxy of this node, as a client on this node'],
    ['sluice explain 10.96.0.10:53/udp --from 10.244.1.7', 'as seen by a pod'],
    ['sluice explain shop/web:http --from 203.0.113.9', 'a service by name, from outside the cluster'],
    ['sluice explain shop/web --kubeconfig ~/.kube/config --node worker-3', 'from anywhere, for some node'],
    ['sluice explain shop/web --manifests ./deploy -o json', 'before anything runs'],
  ],
  takes: [1, 1],
  run,
}

async function run(invocation: Invocation): Promise<number> {
  const { args, flags, terminal } = invocation
  const target = args[0] as string
  const from = await sourceAddress(flags)
  const answers = await ask(invocation, target, from)
  if (answers.length === 0) {
    throw new ProxyError('question', `${target} has no address of the family of ${from || 'this node'} here`)
  }
  terminal.write(
    printed(answers, flags.get('output') ?? 'table', () =>
      answers.map((answer) => describe(answer, terminal)).join('\n'),
    ),
  )
  return 0
}

async function ask(invocation: Invocation, target: string, from: string): Promise<readonly Explanation[]> {
  const proxy = invocation.flags.has('mode') ? undefined : await proxyOf(invocation)
  if (proxy !== undefined) return proxy.explain({ target, from })
  const inputs = await inputsOf(invocation)
  const mode = invocation.flags.get('mode') as typeof inputs.identity.mode | undefined
  const { stage, twin } = await stageOf(
    mode === undefined ? inputs : { ...inputs, identity: { ...inputs.identity, mode } },
  )
  try {
    return await explain(stage, { target, from })
  } finally {
    await twin.close()
  }
}

/** '' for the node itself. */
async function sourceAddress(flags: ReadonlyMap<string, string>): Promise<string> {
  const given = flags.get('from') ?? ''
  if (given === '' || given === 'node') return ''
  const ip = canonicalIp(given)
  if (ip !== undefined) return ip
  const pod = /^pod\/(?:([a-z0-9.-]+)\/)?([a-z0-9.-]+)$/.exec(given)
  if (pod === null) throw new ProxyError('question', `--from: "${given}" is no address, node, or pod/[NAMESPACE/]NAME`)
  if (!flags.has('kubeconfig') && !flags.has('manifests')) {
    throw new ProxyError(
      'question',
      '--from pod/…: a proxy does not know pods by name; add --kubeconfig, or give the address',
    )
  }
  const namespace = pod[1] ?? 'default'
  const found = await readerOf(flags)((list) =>
    list(`/api/v1/namespaces/${namespace}/pods`, { fieldSelector: `metadata.name=${pod[2]}` }),
  )
  const address = canonicalIp((found[0] as { status?: { podIP?: string } } | undefined)?.status?.podIP ?? '')
  if (address === undefined) throw new ProxyError('question', `there is no pod ${namespace}/${pod[2]} with an address`)
  return address
}

const colours: Readonly<Record<Explanation['verdict'], Colour>> = {
  forward: 'green',
  reject: 'red',
  drop: 'red',
  pass: 'yellow',
}

const origins = { pod: 'a pod of this node', node: 'this node', outside: 'outside this node' } as const

export function describe(answer: Explanation, terminal: Terminal): string {
  const { packet, verdict } = answer
  const target = `${hostPort(packet.to, packet.port)}/${packet.protocol}`
  const heading = `${packet.from} (${origins[packet.origin]}) -> ${target}, on ${answer.node}, mode ${answer.mode}`
  const lines = [
    terminal.paint('bold', heading),
    `  ${terminal.paint(colours[verdict], verdictWords(answer))}`,
    ...answer.steps.map((step) => `  - ${step}`),
    ...answer.remarks.map((remark) => `  ${terminal.paint('yellow', '!')} ${remark}`),
  ]
  const endpoints = table(
    ['  ENDPOINT', 'NODE', 'SHARE', 'SOURCE SEEN', 'WHY'],
    answer.endpoints.map((endpoint) => [
      `  ${endpoint.address}`,
      endpoint.node || '-',
      endpoint.probability === 0 ? '-' : `${(endpoint.probability * 100).toFixed(1)}%`,
      endpoint.probability === 0 ? '-' : endpoint.snat ? 'this node' : 'the client',
      endpoint.why,
    ]),
    terminal,
  )
  const entries = table(
    ['  KERNEL OBJECT', 'CONTENT', 'IN THE KERNEL'],
    answer.entries.map(({ id, digest, kernel }) => [
      `  ${id}`,
      shorten(oneLine(digest), 60),
      kernelWord(kernel, terminal),
    ]),
    terminal,
  )
  return [`${lines.join('\n')}\n`, endpoints, entries].filter((part) => part !== '').join('\n')
}

function verdictWords(answer: Explanation): string {
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

export function kernelWord(at: Presence, terminal: Terminal): string {
  if (at === 'held' || at === 'present') return terminal.paint('green', at === 'held' ? 'yes' : 'yes (by name)')
  return at === 'not checked' ? at : terminal.paint('red', at === 'missing' ? 'MISSING' : 'ANOTHER ONE')
}

export const shorten = (text: string, limit: number): string =>
  text.length <= limit ? text : `${text.slice(0, limit - 1)}…`

const oneLine = (text: string): string => text.trim().replaceAll('\n', ' | ')
