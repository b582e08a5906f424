// How userspace mode answers packets, for `trace`: relays of the proxy answer the clients. Pure.

import { commonBehaviour, type ModeBehaviour } from '../../../model/mode-behaviour.ts'

export const userspaceBehaviour: ModeBehaviour = {
  ...commonBehaviour,
  name: 'userspace',
  localhostNodePorts: { 4: 'covered', 6: 'covered' },
  hidesClients: true,
  refusesSctp: true,
}
