// What `sluice explain`, `plan` and `status` say about the parts of iptables mode. Pure.

import type { Family } from '../../../lib/ip.ts'
import type { Held } from '../../backend.ts'
import type { ExplainTraits, PartDescription } from '../../proxy-mode.ts'
import { strayChainOf } from '../entries.ts'

export const iptablesExplain: ExplainTraits = {
  remarks: [],
  describePart,
  listCommand: 'iptables-save -t nat',
}

function describePart(part: Held, family: Family): PartDescription {
  const save = (table: string) => `${family === 4 ? 'iptables' : 'ip6tables'}-save -t ${table}`
  const content = part.digest.trim()
  if (part.kind === 'chain') {
    const chain = strayChainOf(part)
    return { name: `chain ${chain}`, content, command: `${save('nat')} | grep -w -e ${chain}` }
  }
  const table = part.id.startsWith('nat ') ? 'nat' : 'filter'
  if (part.kind === 'base') return { name: `${part.id} of the proxy`, content, command: `${save(table)} | grep KUBE-` }
  // `nat rules ns/name:port/tcp`; the comments of rules have `ns/name:port`.
  const port = part.id.slice(part.id.indexOf(' rules ') + ' rules '.length)
  const comment = port.slice(0, port.lastIndexOf('/'))
  return { name: part.id, content, command: `${save(table)} | grep -F -e '"${comment} '` }
}
