// The machines of the cluster and the network between them: a bridge in the namespace "fabric", dual stack, a pod network per node.

import type { Machine, NamespaceTree } from './namespaces.ts'
import type { RunFolder } from './run-folder.ts'

export const serviceCidrs = '10.96.0.0/16,fd00:96::/112'
export const podCidrs = '10.244.0.0/16,fd00:244::/48'
export const apiServerAddress = '10.99.0.1'

export interface NodeMachine extends Machine {
  readonly addresses: readonly [string, string]
  readonly pods: readonly [string, string]
  readonly zone: string
}

export interface ClusterNetwork {
  /** The machine of the control plane, of the tests, and of clients outside of the cluster. */
  readonly fabric: Machine
  readonly nodes: readonly NodeMachine[]
}

export async function createNetwork(tree: NamespaceTree, run: RunFolder, count: number): Promise<ClusterNetwork> {
  const fabric = await tree.addMachine(
    'fabric',
    `${forwarding(0)}
ip link add br0 type bridge; ip link set br0 up
ip addr add ${apiServerAddress}/24 dev br0; ip addr add fd00:99::1/64 dev br0 nodad`,
  )
  const nodes: NodeMachine[] = []
  for (let number = 1; number <= count; number++) nodes.push(await addNode(tree, run, number))
  for (const [index, node] of nodes.entries()) {
    await fabric.run(['bash', '-ec', connect(index + 1, node)])
    await node.run(['bash', '-ec', configure(node)])
  }
  for (const machine of [fabric, ...nodes]) {
    const routes = nodes.filter((node) => node !== machine).map(routesTo)
    await machine.run(['bash', '-ec', routes.join('\n')])
  }
  return { fabric, nodes }
}

async function addNode(tree: NamespaceTree, run: RunFolder, number: number): Promise<NodeMachine> {
  const machine = await tree.addMachine(`node${number}`, mounts(run.file(`node${number}`)))
  return {
    ...machine,
    addresses: [`10.99.0.${10 + number}`, `fd00:99::${10 + number}`],
    pods: [`10.244.${number}.0/24`, `fd00:244:0:${number}::/64`],
    zone: `zone-${((number - 1) % 3) + 1}`,
  }
}

/** All default paths of kubelet, containerd, CNI and Sluice lead to folders of this node. */
const mounts = (folder: string): string => `
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/containerd
for path in var/lib/kubelet var/lib/containerd var/lib/cni var/lib/sluice etc/cni/net.d var/log/pods var/log/containers; do
  mkdir -p /$path ${folder}/$path
  mount --bind ${folder}/$path /$path
done
echo 'nameserver 127.0.0.1' >/run/resolv.conf
mount --make-rshared /`

/** br_netfilter: packets between pods on one node must pass the rules, those on the fabric's bridge must not. */
const forwarding = (bridged: 0 | 1): string =>
  `sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.bridge.bridge-nf-call-iptables=${bridged} net.bridge.bridge-nf-call-ip6tables=${bridged}`

const connect = (number: number, { pid }: NodeMachine): string => `
ip link add port${number} type veth peer name eth0 netns ${pid}
ip link set port${number} master br0 up`

const configure = ({ addresses }: NodeMachine): string => `
${forwarding(1)}
ip addr add ${addresses[0]}/24 dev eth0; ip addr add ${addresses[1]}/64 dev eth0 nodad; ip link set eth0 up
ip route add default via ${apiServerAddress}; ip route add default via fd00:99::1`

const routesTo = ({ addresses, pods }: NodeMachine): string =>
  `ip route add ${pods[0]} via ${addresses[0]}; ip route add ${pods[1]} via ${addresses[1]}`
