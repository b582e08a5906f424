// The start of the single executable: it is kube-proxy when it is called by that name, and sluice otherwise.

import { basename } from 'node:path'
import { startupSnapshot } from 'node:v8'
import { main } from '../src/main.ts'

function start(): void {
  const name = basename(process.argv0)
  const words = process.argv.slice(2)
  // The plugin of kubectl has these names; see bin/.
  const argv = name === 'kubectl_complete-sluice' ? ['__complete', '--', ...words] : words
  void main(name === 'kube-proxy' ? 'kube-proxy' : 'sluice', argv)
}

if (startupSnapshot.isBuildingSnapshot()) {
  // The proxy is loaded and rehearsed here, so that V8's snapshot has it ready: the executable starts with the heap of this moment.
  void import('../src/daemon/proxy-command.ts').then(async () => (await import('./rehearsal.ts')).rehearse())
  // Two builds give the same bytes. A process that starts from the snapshot gets its own number.
  Object.defineProperty(process, 'pid', { value: 0 })
  startupSnapshot.setDeserializeMainFunction(start)
} else start()
