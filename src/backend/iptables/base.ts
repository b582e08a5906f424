// The rules that exist whatever services there are: masquerading, forwarding, the martian check, and the way to node ports. Pure.

import { isLoopback } from '../../lib/ip.ts'
import type { NodeView } from '../../model/types.ts'
import { counters } from '../iptables-kit/chains.ts'
import { type BaseEntry, createBaseEntry } from './entries.ts'

/** True if node ports answer on 127.0.0.1: it is asked for, possible in this family, and not excluded by nodePortAddresses. */
export const servesLocalhost = (node: NodeView, localhostNodePorts: boolean): boolean =>
  localhostNodePorts && node.family === 4 && node.nodePorts.loopback

/** The mark with eight digits, as kube-proxy prints it. */
const formatMark = (node: NodeView): string => `0x${node.masqueradeMark.toString(16).padStart(8, '0')}`

export function base(node: NodeView, localhostNodePorts: boolean): readonly BaseEntry[] {
  const mark = formatMark(node)
  const localhost = servesLocalhost(node, localhostNodePorts)
  return [
    ...(localhost ? [createBaseEntry('filter head', [martianRule])] : []),
    createBaseEntry('filter tail', [
      `-A KUBE-FORWARD -m conntrack --ctstate INVALID -m nfacct --nfacct-name ${counters.invalid} -j DROP`,
      `-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark ${mark}/${mark} -j ACCEPT`,
      '-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT',
    ]),
    createBaseEntry('nat head', [
      `-A KUBE-POSTROUTING -m mark ! --mark ${mark}/${mark} -j RETURN`,
      // The mark is cleared, so that a packet that passes twice is not masqueraded twice.
      `-A KUBE-POSTROUTING -j MARK --xor-mark ${mark}`,
      '-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully',
      `-A KUBE-MARK-MASQ -j MARK --or-mark ${mark}`,
    ]),
    ...planNodePortTail(node, localhost),
  ]
}

/** route_localnet makes the kernel accept packets from outside for 127.0.0.0/8. The text must stay equal to kubelet's. */
const martianRule =
  '-A KUBE-FIREWALL -m comment --comment "block incoming localnet connections" -d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP'

const nodePortsRule =
  '-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain"'

function planNodePortTail(node: NodeView, localhost: boolean): readonly BaseEntry[] {
  const { all, addresses } = node.nodePorts
  if (!all) {
    const served = addresses.filter((ip) => localhost || !isLoopback(ip))
    const rules = served.map((ip) => `${nodePortsRule} -d ${ip} -j KUBE-NODEPORTS`)
    return rules.length === 0 ? [] : [createBaseEntry('nat tail', rules)]
  }
  const loopback = node.family === 4 ? '127.0.0.0/8' : '::1/128'
  const except = localhost ? '' : ` ! -d ${loopback}`
  return [createBaseEntry('nat tail', [`${nodePortsRule} -m addrtype --dst-type LOCAL${except} -j KUBE-NODEPORTS`])]
}
