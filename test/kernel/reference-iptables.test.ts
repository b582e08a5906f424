// The iptables column of the corpus by rules that are not ours, on a real kernel.

import { runCorpus } from '../lab/corpus.ts'
import { IptablesReferenceDriver } from './reference-iptables.ts'

runCorpus(() => new IptablesReferenceDriver(), { mode: 'iptables' })
