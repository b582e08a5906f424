// The start of the single executable: it is kube-proxy when it is called by that name, and sluice otherwise.

import { basename } from 'node:path'
import { main } from '../src/main.ts'

const name = basename(process.argv0)
const words = process.argv.slice(2)
// The plugin of kubectl has these names; see bin/.
const argv = name === 'kubectl_complete-sluice' ? ['__complete', '--', ...words] : words

void main(name === 'kube-proxy' ? 'kube-proxy' : 'sluice', argv)
