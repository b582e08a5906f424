// Writes the commands that `sluice up` prints so that they work as printed: with the path of this program and the flags that are needed.

import { findSocket } from '../../http/admin-client.ts'
import { findOnPath, ownCommand } from '../own-program.ts'

export interface ToolCommands {
  /** Returns a command line of `sluice` that reaches this proxy. */
  sluice(command: string, ...args: readonly string[]): string
  /** kubectl with the kubeconfig of this API server. */
  readonly kubectl: string
  /** '' if kubectl is installed; otherwise a remark to add to its commands. */
  readonly noKubectl: string
}

export async function findToolCommands(socket: string, kubeconfig: string): Promise<ToolCommands> {
  const program = ownCommand()
  // A command without --socket asks the only proxy that runs here; with none or several it fails.
  const found = await findSocket('', {}).catch(() => '')
  const needed = found === socket ? [] : ['--socket', socket]
  return {
    sluice: (...words) => [program, ...words, ...needed].join(' '),
    kubectl: `kubectl --kubeconfig ${kubeconfig}`,
    noKubectl: findOnPath('kubectl', process.env) === undefined ? '; kubectl is not installed here' : '',
  }
}
