// What `sluice doctor` checks and says for ipvs mode.

import { findNeededPrograms } from '../../iptables-kit/program-findings.ts'
import type { DoctorTraits } from '../../proxy-mode.ts'

export const ipvsDoctor: DoctorTraits = {
  needsNetAdmin: true,
  filesPerConnection: 0,
  findings: () => findNeededPrograms('ipvs'),
  migration: {
    leaving: [
      {
        packet: 'ping to a cluster IP',
        now: 'answered by the node, which has the address on kube-ipvs0',
        later: 'not answered',
        why: 'No interface has cluster IPs any more; kube-ipvs0 goes with sluice cleanup.',
      },
      {
        packet: 'from outside to a service with a Local policy and no endpoint on this node',
        now: 'kube-proxy forwards it to all endpoints',
        later: 'dropped',
        why: 'Local means local; load balancers find the right nodes by the health check node port.',
      },
      {
        packet: 'the ipvs scheduler',
        now: 'rr, lc, sh and others',
        later: 'random',
        why: 'nftables chooses by chance; affinity is by sessionAffinity ClientIP.',
      },
    ],
  },
}
