// Lists the commands of `sluice` and runs one by name: prints its help, or parses its flags, runs it and prints its error in one line.

import { sluiceVersion } from '../config/sluice-version.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import { cleanupCommand } from './cleanup.ts'
import { type Command, formatHelp, parseArguments } from './command.ts'
import { completeCommand } from './complete-words.ts'
import { completionCommand } from './completion.ts'
import { connectCommand } from './connect.ts'
import { doctorCommand } from './doctor/doctor.ts'
import { explainCommand } from './explain.ts'
import { nodesCommand } from './nodes/nodes.ts'
import { openTerminal } from './open-terminal.ts'
import { trialCommand } from './plan/kernel-trial.ts'
import { planCommand } from './plan/plan.ts'
import { statusCommand } from './status.ts'
import type { Terminal } from './terminal.ts'
import { topCommand } from './top/top.ts'
import { upCommand } from './up/up.ts'

const commands: readonly Command[] = [
  upCommand,
  explainCommand,
  planCommand,
  statusCommand,
  topCommand,
  nodesCommand,
  doctorCommand,
  cleanupCommand,
  completionCommand,
  trialCommand,
  connectCommand,
  completeCommand(() => commands),
]

export const visibleCommands = (): readonly Command[] => commands.filter(({ hidden }) => hidden !== true)

export function formatOverview(): string {
  return [
    'sluice: a Kubernetes service proxy, and commands to inspect it',
    '',
    'Usage:',
    '  sluice COMMAND [flags]',
    '',
    'Commands:',
    '  proxy        run the proxy; takes exactly kube-proxy’s flags (sluice proxy --help)',
    ...visibleCommands().map(({ name, summary }) => `  ${name.padEnd(12)} ${summary}`),
    '  version      print the version',
    '',
    'sluice help COMMAND and sluice COMMAND --help show details and examples. Start here:',
    '  sluice up --demo',
    '',
  ].join('\n')
}

/** Returns docs/commands.md; a test keeps that file equal to this text. */
export function formatCommandDocs(): string {
  const exits = [
    '| status | meaning |',
    '| --- | --- |',
    '| 0 | success; for `plan`: nothing would change; for `cleanup --dry-run`: nothing is left |',
    '| 1 | an error, printed in one line on standard error |',
    '| 2 | `plan`: something would change; `cleanup --dry-run`: something is left |',
    '| 3 | `status`, `doctor`, `nodes`: something is wrong, and the output says what |',
  ]
  return [
    '# Commands',
    '',
    'Generated from the command table: run `npm run docs` after a change.',
    '',
    '`sluice proxy` takes kube-proxy’s flags, see [flags.md](flags.md). The other commands ask a running proxy through its admin socket:',
    '`/run/sluice/NODE.sock`, which only its owner may open. `SLUICE_ADMIN_SOCKET` names another path, or `off`. `--node` asks the proxy of',
    'another node through the API server, see [fleet.md](fleet.md). With `--simulate` or `--manifests`, or with `--kubeconfig` and no `--node`,',
    'the commands compute by themselves what a proxy would do; `plan` and `doctor` do so with `--kubeconfig` always. `-o json` and `-o yaml`',
    'are for programs, see [json.md](json.md). `NO_COLOR` switches colours off.',
    '',
    ...exits,
    '',
    ...visibleCommands().flatMap((command) => [
      `## sluice ${command.name}`,
      '',
      '```',
      formatHelp(command).trimEnd(),
      '```',
      '',
    ]),
  ].join('\n')
}

/** Resolves with the exit status; undefined if the name is unknown. */
export async function runCommand(
  name: string,
  argv: readonly string[],
  terminal: Terminal = openTerminal(),
): Promise<number | undefined> {
  if (name === 'version' || name === '--version') {
    terminal.write(`sluice ${sluiceVersion}\n`)
    return 0
  }
  if (['help', '--help', '-h'].includes(name)) return printHelp(argv[0], terminal)
  const command = commands.find((each) => each.name === name)
  if (command === undefined) return undefined
  try {
    const { flags, args, help } = parseArguments(command, argv)
    if (help) {
      terminal.write(formatHelp(command))
      return 0
    }
    return await command.run({ flags, args, terminal })
  } catch (error) {
    if (!(error instanceof ProxyError) && !isSystemError(error)) throw error
    terminal.note(`sluice ${name}: ${describeError(error)}\n`)
    return 1
  }
}

/** Prints the help of a command, or the overview without a name. Returns undefined if the name is unknown. */
function printHelp(name: string | undefined, terminal: Terminal): number | undefined {
  const command = commands.find((each) => each.name === name)
  if (name !== undefined && command === undefined) return undefined
  terminal.write(command === undefined ? formatOverview() : formatHelp(command))
  return 0
}

/** True for a failed system call, as of a file that may not be written: its message says all, and a stack would add nothing. */
const isSystemError = (error: unknown): boolean => error instanceof Error && 'syscall' in error && 'code' in error
