// What `sluice doctor` checks and says for nftables mode.

import { findIptablesPrograms } from '../../iptables-kit/program-findings.ts'
import type { DoctorTraits } from '../../proxy-mode.ts'

export const nftablesDoctor: DoctorTraits = {
  minimumKernel: [5, 13],
  needsNetAdmin: true,
  filesPerConnection: 0,
  findings: () =>
    findIptablesPrograms({
      level: 'note',
      meaning: 'Not needed: nftables mode speaks to the kernel itself.',
      todo: 'Nothing.',
    }),
  migration: {
    leaving: [],
    entering: {
      differences: [
        {
          packet: 'to an address of the service range that no service has',
          now: 'left to routing, perhaps out to the internet',
          later: 'dropped',
          why: 'Traffic to unallocated cluster IPs is dropped, so that it does not loop through the network.',
        },
        {
          packet: 'rules in iptables that name KUBE- chains, or count on their order',
          now: 'work',
          later: 'have nothing to hold on to',
          why: 'nftables mode has a table of its own; scripts, CNI plugins and monitoring that read KUBE-* chains must change.',
        },
      ],
      advice:
        'To keep node ports on all addresses: nodePortAddresses: [0.0.0.0/0, ::/0]; on loopback as well: add localhost.',
    },
  },
}
