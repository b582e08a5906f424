// Checks the expectations for iptables in the corpus against rules that are not ours, on a real kernel.

import { runCorpus } from '../lab/corpus.ts'
import { IptablesReferenceDriver } from './reference-iptables.ts'
import { takenByKubeProxy, unknownToKubeProxy } from './reference-model.ts'

runCorpus(() => new IptablesReferenceDriver(), {
  mode: 'iptables',
  deviations: [
    { reason: 'kube-proxy takes reserved addresses and pods of others', scenarios: takenByKubeProxy },
    { reason: 'kube-proxy has no weights and no algorithms', scenarios: unknownToKubeProxy },
  ],
})
