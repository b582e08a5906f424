// `sluice explain`: says what happens to a packet and why, and whether the kernel holds the entries behind it.

import type { Explanation } from '../http/admin.ts'
import type { AdminClient } from '../http/admin-client.ts'
import { explain } from '../inspect/explanation.ts'
import { addNamespace } from '../inspect/service-name.ts'
import { ProxyError } from '../lib/errors.ts'
import { formatExplanation } from './answers/explanation-text.ts'
import { enterPrefix } from './answers/proxy-namespace.ts'
import { type Command, type Flags, type Invocation, namespaceFlag, outputFlag } from './command.ts'
import { resolvePacketSource } from './sources/packet-source.ts'
import { modeFlag, planInputs, reachFlags, reachProxy, readInputs } from './sources/source.ts'
import { formatAnswer } from './terminal.ts'

export const explainCommand: Command = {
  name: 'explain',
  usage: 'ADDRESS:PORT[/PROTOCOL] | :NODEPORT | [NAMESPACE/]NAME[:PORT] | NAME.NAMESPACE.svc[:PORT] [flags]',
  about: `Traces one packet through this node and says why it goes where it goes: the service it is for, each policy and topology
decision, every endpoint with its share or the reason why it is left out, affinity, source translation, and the entries behind it, with
whether the kernel holds them now and the command that shows them there. A service is traced on each of its addresses; svc/NAME and DNS
names are understood. What cannot be known from the source of the answer is called unknown.`,
  flags: [
    { name: 'from', value: 'SOURCE', help: 'an address, node (default), or pod/[NAMESPACE/]NAME' },
    namespaceFlag('namespace of a service or pod that is named without one (default: default)'),
    ...reachFlags,
    modeFlag,
    outputFlag,
  ],
  examples: [
    ['sluice explain 10.96.0.10:53/udp', 'ask the proxy of this node; the client is this node'],
    ['sluice explain 10.96.0.10:53/udp --from 10.244.1.7', 'the client is a pod'],
    ['sluice explain shop/web:http --from 203.0.113.9', 'a service by name; the client is outside the cluster'],
    ['sluice explain web.shop.svc.cluster.local --from pod/shop/web-0', 'both by name'],
    ['sluice explain :30080 --from 203.0.113.9', 'a node port'],
    ['sluice explain shop/web --node worker-3', 'ask the proxy of another node, through the API server'],
    ['sluice explain shop/web --node worker-3 --simulate', 'compute the answer for another node, without its proxy'],
    ['sluice explain shop/web --manifests ./deploy -o json', 'before anything runs'],
  ],
  arguments: { least: 1, most: 1, offered: 'services' },
  run,
}

async function run({ args, flags, terminal }: Invocation): Promise<number> {
  const target = addNamespace(args[0] ?? '', flags.get('namespace') ?? 'default')
  // A running proxy answers only for its own mode.
  const proxy = flags.has('mode') ? undefined : await reachProxy(flags)
  const from = await resolvePacketSource(flags, proxy)
  const items = proxy === undefined ? await compute(flags, target, from) : await proxy.explain({ target, from })
  if (items.length === 0) {
    throw new ProxyError('question', `${target} has no address of the family of ${from || 'this node'} here`)
  }
  const format = flags.get('output') ?? 'table'
  const prefix = proxy === undefined || format !== 'table' ? '' : await findPrefix(proxy)
  const describeAll = () => items.map((answer) => formatExplanation(answer, terminal, prefix)).join('\n')
  terminal.write(formatAnswer({ kind: 'ExplanationList', items }, format, describeAll))
  return 0
}

/** Only the pid of a proxy on this machine means anything here: its client names the file of a socket. */
const findPrefix = async (proxy: AdminClient): Promise<string> =>
  proxy.path.startsWith('/') ? enterPrefix((await proxy.summary()).pid) : ''

async function compute(flags: Flags, target: string, from: string): Promise<readonly Explanation[]> {
  const inputs = await readInputs(flags)
  const mode = (flags.get('mode') as typeof inputs.identity.mode | undefined) ?? inputs.identity.mode
  const { context, dryRun } = await planInputs({ ...inputs, identity: { ...inputs.identity, mode } })
  try {
    return await explain(context, { target, from })
  } finally {
    await dryRun.close()
  }
}
