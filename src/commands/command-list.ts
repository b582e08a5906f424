// The commands of `sluice`, and what starting one means: help, flags, one clear line for an error, an exit status.

import { sluiceVersion } from '../config/sluice-version.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import { cleanupCommand } from './cleanup.ts'
import { type Command, helpOf, parse } from './command.ts'
import { completionCommand } from './completion.ts'
import { doctorCommand } from './doctor/doctor.ts'
import { explainCommand } from './explain.ts'
import { trialCommand } from './plan/kernel-trial.ts'
import { planCommand } from './plan/plan.ts'
import { statusCommand } from './status.ts'
import { processTerminal, type Terminal } from './terminal.ts'
import { upCommand } from './up/up.ts'

const commands: readonly Command[] = [
  upCommand,
  explainCommand,
  planCommand,
  statusCommand,
  doctorCommand,
  cleanupCommand,
  completionCommand(() => commands),
  trialCommand,
]

export function help(): string {
  const shown = commands.filter(({ hidden }) => hidden !== true)
  return [
    'sluice: a Kubernetes service proxy, and what to ask it',
    '',
    'Usage:',
    '  sluice COMMAND [flags]',
    '',
    'Commands:',
    '  proxy        run the proxy; takes exactly kube-proxy’s flags (sluice proxy --help)',
    ...shown.map(({ name, summary }) => `  ${name.padEnd(12)} ${summary}`),
    '  version      the version',
    '',
    'sluice COMMAND --help tells more, with examples. Start here:',
    '  sluice up --demo',
    '',
  ].join('\n')
}

/** Markdown; a test keeps docs/commands.md equal to it. */
export function commandDocs(): string {
  const shown = commands.filter(({ hidden }) => hidden !== true)
  const exits = [
    '| status | means |',
    '| --- | --- |',
    '| 0 | done; for `plan`: nothing would change; for `cleanup --dry-run`: nothing is there |',
    '| 1 | an error, told in one line on standard error |',
    '| 2 | `plan`: something would change; `cleanup --dry-run`: something is there |',
    '| 3 | `status`, `doctor`: something is wrong, told in the answer |',
  ]
  return [
    '# Commands',
    '',
    'Made from the command table: run `npx vitest run test/commands/command-list.test.ts -u` after a change.',
    '',
    '`sluice proxy` takes kube-proxy’s flags, see [flags.md](flags.md). The other commands ask a running proxy through its admin socket',
    '(`/run/sluice/NODE.sock`, for its owner only; `SLUICE_ADMIN_SOCKET` names another place, or `off`), or, with `--kubeconfig` or',
    '`--manifests`, know by themselves what a proxy would do. `-o json` and `-o yaml` are for programs; `NO_COLOR` is respected.',
    '',
    ...exits,
    '',
    ...shown.flatMap((command) => [`## sluice ${command.name}`, '', '```', helpOf(command).trimEnd(), '```', '']),
  ].join('\n')
}

/** Resolves with the exit status; undefined if there is no such command. */
export async function runCommand(
  name: string,
  argv: readonly string[],
  terminal: Terminal = processTerminal(),
): Promise<number | undefined> {
  if (name === 'version' || name === '--version') {
    terminal.write(`sluice ${sluiceVersion}\n`)
    return 0
  }
  const command = commands.find((each) => each.name === name)
  if (command === undefined) return undefined
  try {
    const invocation = parse(command, argv)
    if (invocation.help) {
      terminal.write(helpOf(command))
      return 0
    }
    return await command.run({ ...invocation, terminal })
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    terminal.note(`sluice ${name}: ${describeError(error)}\n`)
    return 1
  }
}
