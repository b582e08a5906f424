// `sluice doctor`: looks over the machine and the cluster's side of it, and says of each finding what it means and what to do.

import type { Mode } from '../../backend/backend.ts'
import type { Finding, Level } from '../../backend/finding.ts'
import { defaultMode, findMode, modes } from '../../backend/modes.ts'
import { count } from '../../lib/plural.ts'
import type { Command, Invocation } from '../command.ts'
import { noArguments, outputFlag } from '../command.ts'
import { configFrom, modeFlag, sourceFlags } from '../sources/source.ts'
import { type Colour, formatAnswer, formatTable, type Terminal } from '../terminal.ts'
import { clusterFindings, examineProxy } from './cluster.ts'
import { machineFindings } from './machine.ts'
import { migrate } from './migrate.ts'

/** The modes that the doctor can compare others with. */
const migrationTargets = modes.filter(({ doctor }) => doctor.migration.entering !== undefined).map(({ name }) => name)

export const doctorCommand: Command = {
  name: 'doctor',
  summary: 'kernel, tools, settings, other proxies and firewalls, API and permissions: what is wrong and what to do',
  usage: '[flags]',
  about: `Looks over this machine: kernel features, programs, modules, settings, rules of other proxies and firewalls, the running proxy, the
API server and what it lets us do. Each finding says what it means and what to do. Exits with 3 if there is a problem.
With --migrate-to it reads a node that runs kube-proxy in another mode and reports, service by service, what will change.`,
  flags: [
    modeFlag,
    ...sourceFlags,
    {
      name: 'migrate-to',
      value: 'MODE',
      help: `what would change: ${migrationTargets.join(' or ')}`,
      choices: migrationTargets,
    },
    outputFlag,
  ],
  examples: [
    ['sluice doctor', 'look over this machine'],
    ['sluice doctor --kubeconfig /etc/sluice/kubeconfig', 'and the API server, with these credentials'],
    [`sluice doctor --migrate-to ${migrationTargets[0]} --kubeconfig ~/.kube/config`, 'before leaving another mode'],
  ],
  arguments: noArguments,
  run,
}

async function run(invocation: Invocation): Promise<number> {
  if (invocation.flags.has('migrate-to')) return migrate(invocation)
  const { flags, terminal } = invocation
  const proxy = await examineProxy(flags.get('socket') ?? '')
  const findings = [
    ...(await machineFindings(findMode(modeOf(flags, proxy.mode)))),
    ...proxy.findings,
    ...(await clusterFindings(flags)),
  ]
  terminal.write(formatAnswer(findings, flags.get('output') ?? 'table', () => describe(findings, terminal)))
  return findings.some(({ level }) => level === 'problem') ? 3 : 0
}

function modeOf(flags: ReadonlyMap<string, string>, running: Mode | undefined): Mode {
  return flags.has('mode') || flags.has('config') ? configFrom(flags).mode : (running ?? defaultMode)
}

const colours: Readonly<Record<Level, Colour>> = { ok: 'green', note: 'cyan', warning: 'yellow', problem: 'red' }

function describe(findings: readonly Finding[], terminal: Terminal): string {
  const level = (one: Level) => terminal.paint(colours[one], one)
  const list = formatTable(
    ['', 'ABOUT', 'FOUND'],
    findings.map(({ level: one, about, found }) => [level(one), about, found]),
    terminal,
  )
  const explained = findings
    .filter(({ level: one }) => one !== 'ok')
    .map(
      ({ level: one, about, found, meaning, todo }) =>
        `${level(one)} ${terminal.paint('bold', about)}: ${found}\n  ${meaning}\n  -> ${todo}\n`,
    )
  const of = (one: Level) => findings.filter(({ level: each }) => each === one).length
  const verdict = `${count(of('problem'), 'problem')}, ${count(of('warning'), 'warning')}, ${count(of('note'), 'note')}.\n`
  return [list, ...explained, verdict].join('\n')
}
