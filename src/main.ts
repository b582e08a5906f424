// The entry of both executables: chooses the command and sets the exit status.

import { formatRequestedText } from './config/flags/print-request.ts'
import { hasErrno } from './lib/errors.ts'

/** Resolves when the command has ended. */
export async function main(program: 'kube-proxy' | 'sluice', argv: readonly string[]): Promise<void> {
  ignoreDebuggerSignal()
  const [name = 'help', ...rest] = argv
  const isProxyHelp = name === 'help' && rest[0] === 'proxy'
  if (program === 'kube-proxy' || name === 'proxy' || isProxyHelp) {
    const flags = isProxyHelp ? ['--help'] : rest
    process.exitCode = await runKubeProxy(program === 'kube-proxy' ? argv : flags)
    return
  }
  // Loaded only here, so that the proxy, which runs on every node, does not load the commands for people.
  const { runCommand } = await import('./commands/command-list.ts')
  // A reader that closes the pipe early (`| head`) does not count as an error.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (hasErrno(error, 'EPIPE')) process.exit(0)
    throw error
  })
  const status = await runCommand(name, rest)
  const unknown = name === 'help' ? rest[0] : name
  if (status === undefined) process.stderr.write(`sluice: there is no command "${unknown}"; see sluice help\n`)
  process.exitCode = status ?? 1
}

/** Prints the help or the version at once, and loads the proxy for everything else. */
async function runKubeProxy(argv: readonly string[]): Promise<number> {
  // Nothing that kube-proxy prints to stdout is worth ending for.
  process.stdout.on('error', () => {})
  const text = formatRequestedText(argv)
  if (text === undefined) return (await import('./daemon/proxy-command.ts')).runProxyCommand(argv)
  process.stdout.write(text)
  return 0
}

/**
 * SIGUSR1 makes Node open its debugger on 127.0.0.1:9229, where every local user can then run code as root. A listener takes its place.
 * Node's option --disable-sigusr1 exists only since 22.14. The executables listen from their first line on.
 */
function ignoreDebuggerSignal(): void {
  process.on('SIGUSR1', () => {})
}
