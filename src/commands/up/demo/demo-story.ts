// What there is to see in the demo: the commands to try, and the same things done and checked by ourselves for `--once`.

import { findMode } from '../../../backend/modes.ts'
import type { Terminal } from '../../terminal.ts'
import type { Demo } from './demo.ts'
import { clientIp, nodes, pods } from './demo-network.ts'
import { hello, nobody, redis } from './demo-objects.ts'

const shell = pods.find(({ name }) => name === 'shell') as { ip: string }

export function introduction(demo: Demo, terminal: Terminal): string {
  const within = (space: string) => `ip netns exec ${demo.world.space(space)}`
  const bold = (text: string) => terminal.paint('bold', text)
  const rows: readonly (readonly [string, string])[] = [
    [`${within('shell')} curl -s http://${redis.clusterIp}:${redis.port}/`, 'a pod asks the cluster IP'],
    [`${within('client')} curl -s http://${nodes.node1.ip}:${redis.nodePort}/`, 'from outside, by node port'],
    [`kubectl --kubeconfig ${demo.kubeconfig} apply -f ${demo.scaleFile}`, 'scale from 1 to 2 (delete -f: back)'],
    [`kubectl --kubeconfig ${demo.kubeconfig} -n work get services,pods,endpointslices -o wide`, 'look at it'],
    [`sluice explain work/saythx-redis --from ${shell.ip} --socket ${demo.proxy.path}`, 'why a packet goes where'],
    [`sluice status --socket ${demo.proxy.path}`, 'wanted, programmed, in the kernel'],
    [`${within('node1')} ${findMode(demo.mode).explain.listCommand}`, 'the rules themselves'],
  ]
  return [
    bold('A small world of its own; this machine’s network is not touched.'),
    `  node1 ${nodes.node1.ip} (runs the proxy, mode ${demo.mode}): ${podNames('node1')}`,
    `  node2 ${nodes.node2.ip}: ${podNames('node2')}`,
    `  client ${clientIp}, outside`,
    '',
    bold('Services'),
    `  work/saythx-redis   ${redis.clusterIp}:${redis.port}, node port ${redis.nodePort}, 1 pod of 2`,
    `  default/hello       ${hello.clusterIp}:${hello.port}, 2 pods on two nodes`,
    `  default/nobody      ${nobody.clusterIp}:${nobody.port}, no pods`,
    '',
    bold('Try, in another terminal:'),
    ...rows.map(([command, what]) => `  ${terminal.paint('dim', `# ${what}`)}\n  ${command}`),
    '',
    `${terminal.interactive ? 'Here: 2 scales work/saythx-redis to two pods, 1 back to one. ' : ''}Ctrl-C ends it and removes all of it.`,
    '',
  ].join('\n')
}

const podNames = (node: string): string =>
  pods
    .filter((pod) => pod.node === node)
    .map(({ name, ip }) => `${name} ${ip}`)
    .join(', ')

/** Plays it all by itself, printing each command and its answer; false if anything went otherwise than it should. */
export async function play(demo: Demo, terminal: Terminal): Promise<boolean> {
  const { world } = demo
  let good = true
  const check = (ok: boolean, expected: string) => {
    if (!ok) good = false
    terminal.write(
      ok ? `  ${terminal.paint('green', 'ok')}: ${expected}\n` : `  ${terminal.paint('red', 'NOT')} ${expected}\n`,
    )
  }
  const ask = (name: 'shell' | 'client', to: { host: string; port: number }) =>
    world.ask(name, name === 'shell' ? shell.ip : clientIp, to)
  const curl = async (name: 'shell' | 'client', to: { host: string; port: number }) => {
    const answer = await ask(name, to)
    terminal.write(`$ ip netns exec ${world.space(name)} curl http://${to.host}:${to.port}/\n${answer}\n`)
    return answer
  }
  const cluster = { host: redis.clusterIp, port: redis.port }
  const nodePort = { host: nodes.node1.ip, port: redis.nodePort }

  const first = await curl('shell', cluster)
  // Relays end connections themselves, so there the pod cannot see who asked.
  const relayed = findMode(demo.mode).behaviour({ localhostNodePorts: true }).hidesClients
  check(
    first.startsWith('saythx-redis-1') && first.includes(shell.ip) === !relayed,
    `the one pod answers and sees ${relayed ? 'the node, which relays' : 'the client’s own address'}`,
  )
  const outside = await curl('client', nodePort)
  check(
    outside.startsWith('saythx-redis-1') && !outside.includes(clientIp),
    'the node port answers; the pod sees the node',
  )

  terminal.write(`$ kubectl apply -f ${demo.scaleFile}      # from 1 pod to 2\n`)
  await demo.scale(2)
  await demo.settled('work/saythx-redis', 2)
  const tally = await spread(() => ask('shell', cluster), 40)
  terminal.write(
    `$ for i in $(seq 40); do curl http://${redis.clusterIp}:${redis.port}/; done | count\n${show(tally)}\n`,
  )
  check(
    tally.size === 2 && [...tally.keys()].every((name) => name.startsWith('saythx-redis-')),
    'both pods, on both nodes, take their share',
  )
  const far = await spread(() => ask('client', nodePort), 20)
  check(far.size === 2, 'so they do for the node port, from outside')

  await curl('shell', { host: hello.clusterIp, port: hello.port })
  const refused = await curl('shell', { host: nobody.clusterIp, port: nobody.port })
  check(refused === 'refused', 'a service without pods refuses at once, nobody waits')

  terminal.write(`$ kubectl delete -f ${demo.scaleFile}     # back to 1\n`)
  await demo.scale(1)
  await demo.settled('work/saythx-redis', 1)
  const back = await spread(() => ask('shell', cluster), 10)
  check(back.size === 1 && back.has('saythx-redis-1'), 'only the pod that is left gets connections')

  const [why] = await demo.proxy.explain({ target: 'work/saythx-redis', from: shell.ip })
  terminal.write(
    `$ sluice explain work/saythx-redis --from ${shell.ip}\n${(why?.steps ?? []).map((line) => `- ${line}`).join('\n')}\n`,
  )
  const used = why?.endpoints.filter(({ probability }) => probability > 0).map(({ address }) => address)
  const inKernel = why?.entries.every(({ kernel }) => kernel !== 'missing' && kernel !== 'differs')
  check(
    why?.verdict === 'forward' && used?.join() === '10.32.0.2:6379' && inKernel === true,
    'explain says what the packets did, and the kernel holds it',
  )
  return good
}

/** Answers by the name of the pod. */
async function spread(ask: () => Promise<string>, times: number): Promise<Map<string, number>> {
  const tally = new Map<string, number>()
  for (let i = 0; i < times; i++) {
    const name = (await ask()).split(' ')[0] as string
    tally.set(name, (tally.get(name) ?? 0) + 1)
  }
  return tally
}

const show = (tally: ReadonlyMap<string, number>): string =>
  [...tally]
    .sort()
    .map(([name, times]) => `${String(times).padStart(3)} ${name}`)
    .join('\n')
