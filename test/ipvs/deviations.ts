// Where IPVS differs from the other modes on purpose or by nature, packet by packet.

import type { Deviation } from '../lab/driver.ts'

export const deviations: readonly Deviation[] = []
