// The start of the single executable: it is kube-proxy when it is called by that name, and sluice otherwise.

import { basename } from 'node:path'
import { main } from '../src/main.ts'

void main(basename(process.argv0) === 'kube-proxy' ? 'kube-proxy' : 'sluice', process.argv.slice(2))
