// `sluice doctor`: checks this machine, other proxies and firewalls, the running proxy and the API server, and says what to do.

import { readlinkSync } from 'node:fs'
import type { Mode } from '../../backend/backend.ts'
import { couldNotLook, type Finding, type Level, ok } from '../../backend/finding.ts'
import { defaultMode, findMode, modes } from '../../backend/modes.ts'
import type { ProxyMode } from '../../backend/proxy-mode.ts'
import { describeError } from '../../lib/errors.ts'
import { count } from '../../lib/plural.ts'
import { enterNamespaceOf } from '../../sys/netns.ts'
import { enterPrefix } from '../answers/proxy-namespace.ts'
import { formatParagraph, formatTable } from '../answers/table.ts'
import { type Command, type Flags, type Invocation, noArguments, outputFlag } from '../command.ts'
import { configFrom, modeFlag, sourceFlags } from '../sources/source.ts'
import { type Colour, formatAnswer, shorten, type Terminal } from '../terminal.ts'
import { examineApiServer } from './api-server.ts'
import { examineFirewalls } from './firewalls.ts'
import { checkClock, checkProc, examineMachine } from './machine.ts'
import { reportMigration } from './migration.ts'
import { examineOtherProxies } from './other-proxies.ts'
import { examineProxy } from './running-proxy.ts'

/** The modes that the doctor can compare the present mode with. */
const migrationTargets = modes.filter(({ doctor }) => doctor.migration.entering !== undefined).map(({ name }) => name)

export const doctorCommand: Command = {
  name: 'doctor',
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
  linuxOnly: true,
  run,
}

async function run(invocation: Invocation): Promise<number> {
  const { flags, terminal } = invocation
  if (flags.has('migrate-to')) return reportMigration(invocation)
  const proxy = await examineProxy(flags.get('socket') ?? '')
  const mode = findMode(modeOf(flags, proxy.mode))
  // Asked first: the API server is to be reached from here, all else concerns the network of the proxy.
  const apiServer = await examineApiServer(flags)
  const missing = checkProc()
  const node = missing === undefined ? await examineNode(mode, proxy.pid) : [missing]
  const findings = [...node, checkClock(), ...proxy.findings, ...apiServer]
  const answer = { kind: 'Diagnosis', findings }
  terminal.write(formatAnswer(answer, flags.get('output') ?? 'table', () => describe(findings, terminal)))
  return findings.some(({ level }) => level === 'problem') ? 3 : 0
}

async function examineNode(mode: ProxyMode, pid: number): Promise<readonly Finding[]> {
  // Before the namespace is entered, which makes it ours.
  const prefix = enterPrefix(pid)
  return [
    ...enterNetwork(pid),
    ...(await examineMachine(mode, { pid, prefix })),
    ...(await examineOtherProxies(mode.name, pid)),
    ...(await examineFirewalls()),
  ]
}

/** A proxy may have a network namespace of its own, as in the demo: its rules, settings and sockets are there. */
function enterNetwork(pid: number): readonly Finding[] {
  const about = 'network namespace'
  const own = linkOf('/proc/thread-self/ns/net')
  const there = pid === 0 ? own : linkOf(`/proc/${pid}/ns/net`)
  if (there === own) return []
  try {
    enterNamespaceOf(pid)
    return [ok(about, `that of the proxy, pid ${pid}`)]
  } catch (error) {
    return [couldNotLook(about, `the proxy, pid ${pid}, may be in another one: ${describeError(error)}`)]
  }
}

function linkOf(path: string): string {
  try {
    return readlinkSync(path)
  } catch {
    return ''
  }
}

function modeOf(flags: Flags, running: Mode | undefined): Mode {
  return flags.has('mode') || flags.has('config') ? configFrom(flags).mode : (running ?? defaultMode)
}

const colours: Readonly<Record<Level, Colour>> = {
  ok: 'green',
  unknown: 'yellow',
  note: 'cyan',
  warning: 'yellow',
  problem: 'red',
}

function describe(findings: readonly Finding[], terminal: Terminal): string {
  const paintLevel = (level: Level) => terminal.paint(colours[level], level)
  // What is not ok follows below the table in full.
  const rows = findings.map(({ level, about, found }) => [
    paintLevel(level),
    about,
    level === 'ok' ? found : shorten(found, 60),
  ])
  const details = findings
    .filter(({ level }) => level !== 'ok')
    .map(({ level, about, found, meaning, todo }) =>
      [
        formatParagraph(`${paintLevel(level)} ${terminal.paint('bold', about)}: ${found}`, terminal, '  '),
        formatParagraph(`  ${meaning}`, terminal, '  '),
        formatParagraph(`  -> ${todo}`, terminal, '     '),
      ].join(''),
    )
  const total = (level: Level) => findings.filter((finding) => finding.level === level).length
  const totals = (['problem', 'warning', 'note'] as const).map((level) => count(total(level), level))
  const unknown = total('unknown') === 0 ? '' : `, ${total('unknown')} could not be checked`
  const summary = `${totals.join(', ')}${unknown}.\n`
  return [formatTable(['', 'ABOUT', 'FOUND'], rows, terminal), ...details, summary].join('\n')
}
