// Describes the running demo: its nodes, pods and services, and commands to try.

import { findMode } from '../../../backend/modes.ts'
import type { Terminal } from '../../terminal.ts'
import type { ToolCommands } from '../tool-commands.ts'
import type { Demo } from './demo.ts'
import { clientIp, nodes, pods, shellIp } from './demo-network.ts'
import { empty, hello, redis } from './demo-objects.ts'

export async function introduceDemo(demo: Demo, terminal: Terminal): Promise<string> {
  const commands = commandsToTry(demo, await demo.toolCommands())
  const bold = (text: string) => terminal.paint('bold', text)
  const keys = 'Keys here: 2 scales work/saythx-redis to two pods, 1 scales it back to one pod. '
  return [
    bold('The demo runs in network namespaces and does not touch the network of this machine.'),
    `  node1 ${nodes.node1.ip} (runs the proxy, mode ${demo.mode}): ${podNames('node1')}`,
    `  node2 ${nodes.node2.ip}: ${podNames('node2')}`,
    `  client ${clientIp}, outside the cluster`,
    '',
    bold('Services'),
    `  work/saythx-redis   ${redis.clusterIp}:${redis.port}, node port ${redis.nodePort}, 1 pod of 2`,
    `  default/hello       ${hello.clusterIp}:${hello.port}, 2 pods on two nodes`,
    `  default/nobody      ${empty.clusterIp}:${empty.port}, no pods`,
    '',
    bold('Try, in another terminal:'),
    ...commands.flatMap(([command, meaning]) => [`  ${terminal.paint('dim', `# ${meaning}`)}`, `  ${command}`]),
    '',
    `${terminal.interactive ? keys : ''}Ctrl-C stops the demo and removes everything.`,
    '',
  ].join('\n')
}

function commandsToTry(
  demo: Demo,
  { sluice, kubectl, noKubectl }: ToolCommands,
): readonly (readonly [command: string, meaning: string])[] {
  const { listCommand } = findMode(demo.mode).explain
  const inNamespace = (name: string) => `ip netns exec ${demo.network.namespace(name)}`
  return [
    [`${inNamespace('shell')} curl -s http://${redis.clusterIp}:${redis.port}/`, 'a pod connects to the cluster IP'],
    [`${inNamespace('client')} curl -s http://${nodes.node1.ip}:${redis.nodePort}/`, 'the client uses the node port'],
    [`${kubectl} apply -f ${demo.scaleFile}`, `scale from 1 pod to 2 (delete -f scales back)${noKubectl}`],
    [`${kubectl} -n work get services,pods,endpointslices -o wide`, `list the objects${noKubectl}`],
    [sluice('explain', 'work/saythx-redis', '--from', shellIp), 'why a packet goes where it goes'],
    [sluice('status'), 'compare what is wanted, programmed and in the kernel'],
    [`${inNamespace('node1')} ${listCommand}`, 'the rules themselves'],
  ]
}

const podNames = (node: string): string =>
  pods
    .filter((pod) => pod.node === node)
    .map(({ name, ip }) => `${name} ${ip}`)
    .join(', ')
