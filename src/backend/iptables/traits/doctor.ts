// What `sluice doctor` checks and says for iptables mode.

import { findNeededPrograms } from '../../iptables-kit/program-findings.ts'
import type { DoctorTraits } from '../../proxy-mode.ts'

export const iptablesDoctor: DoctorTraits = {
  needsNetAdmin: true,
  filesPerConnection: 0,
  findings: () => findNeededPrograms('iptables'),
  migration: {
    leaving: [
      {
        packet: 'a pod that reaches itself through a service on another node’s address',
        now: 'source rewritten for every endpoint',
        later: 'source rewritten for endpoints on this node',
        why: 'iptables marks hairpins of remote endpoints, too, which cannot happen.',
      },
    ],
  },
}
