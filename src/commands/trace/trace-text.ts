// Formats a traced packet for people, beside what explain foretells. Pure.

import type { PacketStory } from '../../http/admin-trace.ts'
import { describeVerdict } from '../answers/explanation-text.ts'
import { formatParagraph } from '../answers/table.ts'
import type { Terminal } from '../terminal.ts'

export function formatTracedPacket(packet: PacketStory, terminal: Terminal): string {
  const { foretold, differences } = packet
  const line = (text: string, indent = '    ') => formatParagraph(text, terminal, indent)
  const mark = differences.length > 0 ? terminal.paint('red', 'DIFFERS') : terminal.paint('green', 'as foretold')
  return [
    line(terminal.paint('bold', `${packet.from} -> ${packet.to}/${packet.protocol}`), '  '),
    line(`  foretold  ${foretold === null ? 'nothing' : describeVerdict(foretold)}`),
    line(`  happened  ${describeHappened(packet)}  [${mark}]`),
    ...differences.map((difference) => line(`  ${terminal.paint('red', '!')} ${difference}`)),
    ...packet.steps.map((step) => line(`  - ${step}`)),
  ].join('')
}

function describeHappened({ verdict, endpoint, snat, rule }: PacketStory): string {
  switch (verdict) {
    case 'forward':
      return `forwarded to ${endpoint}; source rewritten: ${snat ? 'yes' : 'no'}`
    case 'reject':
      return `rejected by ${rule}`
    case 'drop':
      return `dropped by ${rule}`
    case 'pass':
      return 'left alone: no rule translated, rejected or dropped it'
  }
}
