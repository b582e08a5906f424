// What `sluice explain`, `plan` and `status` say about the parts of ipvs mode: names and commands of ipvsadm, ipset and ip. Pure.

import type { Family } from '../../../lib/ip.ts'
import type { Held } from '../../backend.ts'
import type { ExplainTraits, PartDescription } from '../../proxy-mode.ts'
import { addressOfId, deviceName, keyOfId, splitMember } from '../entries.ts'

export const ipvsExplain: ExplainTraits = {
  remarks: ['IPVS chooses by its scheduler; the shares are averages over many connections.'],
  describePart,
  // The kernel does not say which virtual servers are for node ports.
  observedId: (id) => id.replace(/^node-port /, 'server '),
  listCommand: 'cat /proc/net/ip_vs',
}

const serviceFlags: Readonly<Record<string, string>> = { tcp: '-t', udp: '-u', sctp: '--sctp-service' }

function describePart(part: Held, family: Family): PartDescription {
  const { id, kind, digest } = part
  if (kind === 'server') return describeServer(keyOfId(id) ?? '', digest)
  if (kind === 'address') {
    const ip = addressOfId(id)
    return { name: `address ${ip}`, content: `on ${deviceName}`, command: `ip addr show dev ${deviceName} to ${ip}` }
  }
  if (kind === 'member') {
    const [set, member] = splitMember(id)
    return { name: `member ${set} ${member}`, content: '', command: `ipset test ${set} ${member}` }
  }
  if (kind === 'set') return { name: id, content: digest, command: `ipset list ${id.slice('set '.length)}` }
  if (kind === 'device') return { name: `device ${deviceName}`, content: digest, command: `ip link show ${deviceName}` }
  const save = family === 4 ? 'iptables-save' : 'ip6tables-save'
  return { name: 'rules of the proxy', content: '', command: `${save} | grep -e KUBE- -e SLUICE-` }
}

/** The key is `tcp 10.96.0.1:80`; the digest is scheduler, flags, timeout, and destinations with weights. */
function describeServer(key: string, digest: string): PartDescription {
  const [protocol = '', address = ''] = key.split(' ')
  const [scheduler = '', , , ...destinations] = digest.split(' ')
  const content = `${scheduler}: ${destinations.map((one) => one.replace('=', ' weight ')).join(', ') || 'no destination'}`
  return {
    name: `virtual server ${protocol} ${address}`,
    content,
    command: `ipvsadm -Ln ${serviceFlags[protocol] ?? '-t'} ${address}`,
  }
}
