// Both executables start here: which command, with which words.

import { proxy } from './daemon/proxy.ts'

/** Never returns before the command has ended; sets the exit status. */
export async function main(program: 'kube-proxy' | 'sluice', argv: readonly string[]): Promise<void> {
  const [name = 'help', ...rest] = argv
  if (program === 'kube-proxy' || name === 'proxy') {
    process.exitCode = await proxy(program === 'kube-proxy' ? argv : rest)
    return
  }
  // Only now: the proxy, which runs on every node, is not to pay for what people ask of it.
  const { help, runCommand } = await import('./commands/command-list.ts')
  if (['help', '--help', '-h'].includes(name)) {
    process.stdout.write(help())
    return
  }
  // A reader that has seen enough (`| head`) is no error.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(0)
    throw error
  })
  const status = await runCommand(name, rest)
  if (status === undefined) process.stderr.write(`sluice: there is no command "${name}"; see sluice help\n`)
  process.exitCode = status ?? 1
}
