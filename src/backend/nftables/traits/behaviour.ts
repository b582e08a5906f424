// How nftables mode answers packets, for `trace`. Pure.

import { commonBehaviour, type ModeBehaviour } from '../../../model/mode-behaviour.ts'

export const nftablesBehaviour: ModeBehaviour = {
  ...commonBehaviour,
  name: 'nftables',
  // kube-proxy 1.36 never serves node ports on loopback here; we do where the configuration names loopback, as 1.37 does.
  localhostNodePorts: { 4: 'named', 6: 'named' },
}
