// Lists the commands of `sluice` and runs one by name: prints its help, or parses its flags, runs it and prints its error in one line.

import { sluiceVersion } from '../config/sluice-version.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import { type Platform, platform } from '../sys/platform/platform.ts'
import { formatHelp, type ListedCommand, parseArguments } from './command.ts'
import { openTerminal } from './open-terminal.ts'
import type { Terminal } from './terminal.ts'

const commands: readonly ListedCommand[] = [
  {
    name: 'up',
    summary: 'start an API server and the proxy for this machine; --demo shows both in network namespaces',
    load: async () => (await import('./up/up.ts')).upCommand,
  },
  {
    name: 'explain',
    summary: 'trace one packet: which service, policies, endpoints and kernel objects, and why',
    load: async () => (await import('./explain.ts')).explainCommand,
  },
  {
    name: 'plan',
    summary: 'show what a change would put and drop, and try it on the kernel without touching this node',
    load: async () => (await import('./plan/plan.ts')).planCommand,
  },
  {
    name: 'status',
    summary: 'compare desired, programmed and kernel state per service; last syncs, errors, conflicts, quarantine',
    load: async () => (await import('./status.ts')).statusCommand,
  },
  {
    name: 'top',
    summary: 'show a running proxy live: services, endpoints, connections, problems and why it synced',
    load: async () => (await import('./top/top.ts')).topCommand,
  },
  {
    name: 'history',
    summary: 'show why the proxy synced and what each sync changed; what differs between two points',
    load: async () => (await import('./history/history-command.ts')).historyCommand,
  },
  {
    name: 'dashboard',
    summary: 'serve a page on loopback that shows a running proxy, or with --kubeconfig all proxies of a cluster',
    load: async () => (await import('./dashboard/dashboard.ts')).dashboardCommand,
  },
  {
    name: 'trace',
    summary: 'follow a real packet through the rules, beside what explain foretells',
    load: async () => (await import('./trace/trace-command.ts')).traceCommand,
  },
  {
    name: 'flows',
    summary: 'show who talks to which service and endpoint, how much, and how it ended; --follow for new flows',
    load: async () => (await import('./flows/flows.ts')).flowsCommand,
  },
  {
    name: 'nodes',
    summary: 'show the proxies of all nodes, and which of them differ from most in which services',
    load: async () => (await import('./nodes/nodes.ts')).nodesCommand,
  },
  {
    name: 'doctor',
    summary:
      'check kernel, programs, settings, other proxies and firewalls, API server and permissions; say what to do',
    load: async () => (await import('./doctor/doctor.ts')).doctorCommand,
  },
  {
    name: 'cleanup',
    summary: 'remove what a proxy has left on this node',
    load: async () => (await import('./cleanup.ts')).cleanupCommand,
  },
  {
    name: 'completion',
    summary: 'print a completion script for bash, zsh or fish',
    load: async () => (await import('./completion.ts')).completionCommand,
  },
  {
    name: '__trial',
    summary: 'try entries on the kernel in a namespace of their own',
    hidden: true,
    load: async () => (await import('./plan/kernel-trial.ts')).trialCommand,
  },
  {
    name: 'connect',
    summary: 'connect standard input and output to the admin socket',
    hidden: true,
    load: async () => (await import('./connect.ts')).connectCommand,
  },
  {
    name: '__complete',
    summary: 'complete the last word for a shell',
    hidden: true,
    load: async () => (await import('./complete-words.ts')).completeCommand(visibleCommands()),
  },
]

export const visibleCommands = (): readonly ListedCommand[] => commands.filter(({ hidden }) => hidden !== true)

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
export async function formatCommandDocs(): Promise<string> {
  const visible = await Promise.all(visibleCommands().map(({ load }) => load()))
  const exits = [
    '| status | meaning |',
    '| --- | --- |',
    '| 0 | success; for `plan`: nothing would change; for `cleanup --dry-run`: nothing is left |',
    '| 1 | an error, printed in one line on standard error |',
    '| 2 | `plan`: something would change; `cleanup --dry-run`: something is left |',
    '| 3 | `status`, `doctor`, `nodes`, `trace`: something is wrong or not as foretold, and the output says what |',
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
    ...visible.flatMap((command) => [`## sluice ${command.name}`, '', '```', formatHelp(command).trimEnd(), '```', '']),
  ].join('\n')
}

/** Resolves with the exit status; undefined if the name is unknown. */
export async function runCommand(
  name: string,
  argv: readonly string[],
  terminal: Terminal = openTerminal(),
  system: Platform['name'] = platform.name,
): Promise<number | undefined> {
  if (name === 'version' || name === '--version') {
    terminal.write(`sluice ${sluiceVersion}\n`)
    return 0
  }
  if (['help', '--help', '-h'].includes(name)) return printHelp(argv[0], terminal)
  const command = await commands.find((each) => each.name === name)?.load()
  if (command === undefined) return undefined
  try {
    const { flags, args, help } = parseArguments(command, argv)
    if (help) {
      terminal.write(formatHelp(command))
      return 0
    }
    if (command.linuxOnly === true && system !== 'Linux') {
      throw new ProxyError(
        'usage',
        `needs Linux; on ${system} run sluice proxy, and ask it with status, explain and plan`,
      )
    }
    return await command.run({ flags, args, terminal })
  } catch (error) {
    if (!(error instanceof ProxyError) && !isSystemError(error)) throw error
    terminal.note(`sluice ${name}: ${describeError(error)}\n`)
    return 1
  }
}

/** Prints the help of a command, or the overview without a name. Returns undefined if the name is unknown. */
async function printHelp(name: string | undefined, terminal: Terminal): Promise<number | undefined> {
  const command = await commands.find((each) => each.name === name)?.load()
  if (name !== undefined && command === undefined) return undefined
  terminal.write(command === undefined ? formatOverview() : formatHelp(command))
  return 0
}

/** True for a failed system call, as of a file that may not be written: its message says all, and a stack would add nothing. */
const isSystemError = (error: unknown): boolean => error instanceof Error && 'syscall' in error && 'code' in error
