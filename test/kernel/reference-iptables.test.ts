// Checks the expectations for iptables in the corpus against rules that are not ours, on a real kernel.

import { runCorpus } from '../lab/corpus.ts'
import { IptablesReferenceDriver } from './reference-iptables.ts'

runCorpus(() => new IptablesReferenceDriver(), { mode: 'iptables' })
