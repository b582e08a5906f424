// `sluice doctor`: checks this machine, other proxies and firewalls, the running proxy and the API server, and says what to do.

import type { Mode } from '../../backend/backend.ts'
import type { Finding, Level } from '../../backend/finding.ts'
import { findLeftovers } from '../../backend/leftovers.ts'
import { defaultMode, findMode, modes } from '../../backend/modes.ts'
import { count } from '../../lib/plural.ts'
import { type Command, type Flags, type Invocation, noArguments, outputFlag } from '../command.ts'
import { configFrom, modeFlag, sourceFlags } from '../sources/source.ts'
import { type Colour, formatAnswer, formatTable, type Terminal } from '../terminal.ts'
import { examineApiServer } from './api-server.ts'
import { examineFirewalls } from './firewalls.ts'
import { checkClock, examineMachine } from './machine.ts'
import { reportMigration } from './migration.ts'
import { examineOtherProxies } from './other-proxies.ts'
import { examineProxy } from './running-proxy.ts'

/** The modes that the doctor can compare the present mode with. */
const migrationTargets = modes.filter(({ doctor }) => doctor.migration.entering !== undefined).map(({ name }) => name)

export const doctorCommand: Command = {
  name: 'doctor',
  summary: 'check kernel, programs, settings, other proxies and firewalls, API server and permissions; say what to do',
  usage: '[flags]',
  about: `Checks this machine (kernel features, programs, modules, settings), the rules of other proxies and firewalls, the running proxy, the
API server and the permissions there. Each finding says what it means and what to do. Exits with 3 if there is a problem.
With --migrate-to it reads a node that runs kube-proxy in another mode and reports, service by service, what will change.`,
  flags: [
    modeFlag,
    ...sourceFlags,
    {
      name: 'migrate-to',
      value: 'MODE',
      help: `report what would change: ${migrationTargets.join(' or ')}`,
      choices: migrationTargets,
    },
    outputFlag,
  ],
  examples: [
    ['sluice doctor', 'check this machine'],
    ['sluice doctor --kubeconfig /etc/sluice/kubeconfig', 'also check the API server, with these credentials'],
    [`sluice doctor --migrate-to ${migrationTargets[0]} --kubeconfig ~/.kube/config`, 'before leaving another mode'],
  ],
  arguments: noArguments,
  run,
}

async function run(invocation: Invocation): Promise<number> {
  const { flags, terminal } = invocation
  if (flags.has('migrate-to')) return reportMigration(invocation)
  const proxy = await examineProxy(flags.get('socket') ?? '')
  const mode = findMode(modeOf(flags, proxy.mode))
  const findings = [
    ...(await examineMachine(mode)),
    ...examineOtherProxies(mode.name, await findLeftovers().catch(() => [])),
    ...(await examineFirewalls()),
    checkClock(),
    ...proxy.findings,
    ...(await examineApiServer(flags)),
  ]
  terminal.write(formatAnswer(findings, flags.get('output') ?? 'table', () => describe(findings, terminal)))
  return findings.some(({ level }) => level === 'problem') ? 3 : 0
}

function modeOf(flags: Flags, running: Mode | undefined): Mode {
  return flags.has('mode') || flags.has('config') ? configFrom(flags).mode : (running ?? defaultMode)
}

const colours: Readonly<Record<Level, Colour>> = { ok: 'green', note: 'cyan', warning: 'yellow', problem: 'red' }

function describe(findings: readonly Finding[], terminal: Terminal): string {
  const paintLevel = (level: Level) => terminal.paint(colours[level], level)
  const rows = findings.map(({ level, about, found }) => [paintLevel(level), about, found])
  const details = findings
    .filter(({ level }) => level !== 'ok')
    .map(
      ({ level, about, found, meaning, todo }) =>
        `${paintLevel(level)} ${terminal.paint('bold', about)}: ${found}\n  ${meaning}\n  -> ${todo}\n`,
    )
  const total = (level: Level) => findings.filter((finding) => finding.level === level).length
  const totals = (['problem', 'warning', 'note'] as const).map((level) => count(total(level), level))
  return [formatTable(['', 'ABOUT', 'FOUND'], rows, terminal), ...details, `${totals.join(', ')}.\n`].join('\n')
}
