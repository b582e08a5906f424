// Both executables start here: which command, with which words.

import { proxy } from './cli/proxy.ts'

const commands: Readonly<Record<string, (argv: readonly string[]) => Promise<number>>> = { proxy }

const help = `sluice: a Kubernetes service proxy

Commands:
  sluice proxy [flags]   run the proxy; takes exactly kube-proxy's flags (sluice proxy --help)
`

/** Never returns before the command has ended; sets the exit status. */
export async function main(program: 'kube-proxy' | 'sluice', argv: readonly string[]): Promise<void> {
  if (program === 'kube-proxy') {
    process.exitCode = await proxy(argv)
    return
  }
  const [name = 'help', ...rest] = argv
  const command = commands[name]
  if (command !== undefined) {
    process.exitCode = await command(rest)
  } else if (['help', '--help', '-h'].includes(name)) {
    process.stdout.write(help)
  } else {
    process.stderr.write(`sluice: there is no command "${name}"\n${help}`)
    process.exitCode = 1
  }
}
