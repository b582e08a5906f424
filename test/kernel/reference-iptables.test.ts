// Checks the expectations for iptables in the corpus against rules that are not ours, on a real kernel.

import { runCorpus } from '../lab/corpus.ts'
import { IptablesReferenceDriver } from './reference-iptables.ts'
import { takenByKubeProxy } from './reference-model.ts'

const reason = 'kube-proxy takes reserved addresses and pods of others'

runCorpus(() => new IptablesReferenceDriver(), {
  mode: 'iptables',
  deviations: [{ reason, scenarios: takenByKubeProxy }],
})
