// How ipvs mode answers packets, for `trace`. Pure.

import { commonBehaviour, type ModeBehaviour } from '../../../model/mode-behaviour.ts'

/** Stricter than kube-proxy's ipvs mode: what kube-proxy's other modes drop and refuse is dropped and refused here, too. */
export const ipvsBehaviour: ModeBehaviour = {
  ...commonBehaviour,
  hashTable: 'kernel',
  name: 'ipvs',
  ownsAddresses: true,
  // A virtual server has one list of destinations for all clients.
  shortCircuits: false,
  dropsUnallocated: false,
  localhostNodePorts: { 4: 'never', 6: 'never' },
}
