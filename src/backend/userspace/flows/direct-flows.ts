// The flows of relays that listen on the services' own addresses: a socket knows what the client asked for, and no kernel is asked.

import type { FlowReports } from '../../relay/flow-reports.ts'
import type { RelayedFlows } from '../../relayed-flows.ts'

const remarks = ['Clients of a service without endpoints are refused by the system, and are not shown.'] as const

export const makeDirectFlows = (reports: FlowReports): RelayedFlows => ({
  remarks,
  list: () => reports.list(),
  follow: (listener) => reports.follow(listener),
})
