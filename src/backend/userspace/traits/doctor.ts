// What `sluice doctor` checks and says for userspace mode.

import { findNeededPrograms } from '../../iptables-kit/program-findings.ts'
import type { DoctorTraits } from '../../proxy-mode.ts'

export const userspaceDoctor: DoctorTraits = {
  // Without it, services answer on loopback only.
  needsNetAdmin: false,
  // One to the client and one to the endpoint.
  filesPerConnection: 2,
  findings: () => findNeededPrograms('userspace'),
  migration: { leaving: [] },
}
