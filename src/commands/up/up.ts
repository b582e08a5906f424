// `sluice up`: starts an API server and the proxy in one command, for this machine or, with --demo, in network namespaces.

import type { Mode } from '../../backend/backend.ts'
import { defaultMode, findMode, modes } from '../../backend/modes.ts'
import type { AdminClient } from '../../http/admin-client.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { type Command, type Flags, type Invocation, noArguments } from '../command.ts'
import { startOwnDashboard } from '../dashboard/dashboard.ts'
import { nodePortRangeFlag } from '../node-port-range.ts'
import { Progress } from '../progress.ts'
import { modeFlag } from '../sources/source.ts'
import { stripColours, type Terminal } from '../terminal.ts'
import { type LiveViewOptions, type ViewKey, watchProxy } from '../top/live-view.ts'
import { NoteCapture } from '../top/note-capture.ts'
import { Demo } from './demo/demo.ts'
import { runChecks } from './demo/demo-checks.ts'
import { introduceDemo } from './demo/demo-introduction.ts'
import { Standalone } from './standalone.ts'
import { checkMode } from './start-checks.ts'
import { nodePortAddresses } from './up-flags.ts'

/** The modes that can serve without root. */
const rootless = modes.flatMap(({ name, unprivileged }) => (unprivileged === undefined ? [] : [name])).join(' or ')

export const upCommand: Command = {
  name: 'up',
  usage: '[flags]',
  about: `Starts a small API server on loopback and the proxy, so that Services work on this machine without a cluster. The Services come
from kubectl or from a directory of YAML files that is watched. With --demo both run in network namespaces of their own, with two nodes,
pods and a client outside, and do not touch the network of this machine. Ctrl-C removes everything. All modes but ${rootless} need root.`,
  flags: [
    { ...modeFlag, help: `${modes.map(({ name }) => name).join(', ')} (default: ${defaultMode})` },
    { name: 'manifests', value: 'DIR', help: 'keep the YAML files of this directory applied', file: true },
    {
      name: 'state',
      value: 'DIR',
      help: 'keep objects and credentials here (default: they are lost when the command ends)',
      file: true,
    },
    { name: 'demo', help: 'run in network namespaces, with pods to connect to' },
    { name: 'no-dashboard', help: 'do not serve the page that sluice dashboard serves' },
    { name: 'once', help: 'with --demo: run all checks, print them, remove everything, exit with 0 if all passed' },
    {
      name: 'scale',
      value: 'N',
      help: 'with --demo: start with 1 or 2 pods of work/saythx-redis',
      choices: ['1', '2'],
    },
    { name: 'address', value: 'IP', help: 'where the API server listens (default 127.0.0.1)' },
    { name: 'port', value: 'PORT', help: 'port of the API server (default 6443)' },
    {
      name: 'service-cidr',
      value: 'CIDR[,CIDR]',
      help: 'cluster IPs (default 10.96.0.0/16 and, with IPv6, fd00:10:96::/112)',
    },
    {
      name: 'cluster-cidr',
      value: 'CIDR[,CIDR]',
      help: 'addresses of containers on this machine: their source is kept',
    },
    { name: 'node', value: 'NAME', help: 'name of this node (default: the host name)' },
    {
      name: 'node-address',
      value: 'IP',
      help: 'address of this node (default: its source address towards other hosts)',
    },
    {
      name: 'nodeport-addresses',
      value: 'CIDR[,CIDR]',
      help: `where node ports answer: CIDRs, localhost, all (default ${nodePortAddresses})`,
    },
    nodePortRangeFlag,
    {
      name: 'keep-rules',
      help: 'leave the rules in place at the end, and take over the rules of the last run at the start',
    },
    { name: 'take-over', help: 'start even if another proxy has rules here, and replace them' },
  ],
  examples: [
    ['sluice up --demo', 'try it in two minutes'],
    ['sluice up --demo --once', 'the same without a person: run all checks'],
    ['sluice up --manifests /etc/sluice --state /var/lib/sluice', 'a load balancer for this machine, from YAML'],
    [`sluice up --mode ${rootless}`, 'without root, on loopback ports'],
  ],
  arguments: noArguments,
  linuxOnly: true,
  run,
}

async function run(invocation: Invocation): Promise<number> {
  const mode = invocation.flags.get('mode') ?? defaultMode
  const demo = invocation.flags.has('demo')
  if (invocation.flags.has('once') && !demo) throw new ProxyError('usage', '--once needs --demo')
  requireRoot(mode, demo)
  return demo ? runDemo(invocation, mode) : runStandalone(invocation, mode)
}

function requireRoot(mode: Mode, demo: boolean): void {
  if (process.getuid?.() === 0 || (findMode(mode).unprivileged !== undefined && !demo)) return
  const privileged = demo ? 'network namespaces' : `rules in the kernel (mode ${mode})`
  throw new ProxyError(
    'root',
    `this makes ${privileged}, which needs root: use sudo, or sluice up --mode ${rootless}, which serves node ports on loopback without root`,
  )
}

async function runDemo({ terminal, flags }: Invocation, mode: Mode): Promise<number> {
  const signal = interruptSignal()
  const progress = new Progress(terminal)
  await checkMode(mode)
  const demo = await Demo.start({ mode, progress, signal })
  if (demo === undefined) return 0
  let passed = true
  try {
    if (flags.get('scale') === '2') {
      await demo.scale(2)
      await demo.waitForEndpoints('work/saythx-redis', 2)
    }
    if (flags.has('once')) passed = await Promise.race([runChecks(demo, terminal), aborted(signal).then(() => false)])
    else await withDashboard(flags, demo.proxy, (page) => showDemo(demo, terminal, page, aborted(signal)))
  } catch (error) {
    if (!signal.aborted) throw error
  } finally {
    await progress.report('Removing everything', () => demo.close())
  }
  return passed ? 0 : 1
}

/** Shows the live view until the user stops the demo. Throws a ProxyError 'demo' if the proxy ends by itself. */
async function showDemo(demo: Demo, terminal: Terminal, page: string, interrupted: Promise<undefined>): Promise<void> {
  const introduction = page + (await introduceDemo(demo, terminal))
  const scale = (replicas: 1 | 2, hint: string): ViewKey => ({
    hint,
    // A failure needs no message: the live view shows the number of pods.
    press: () => void demo.scale(replicas).catch(() => {}),
  })
  const keys = { 1: scale(1, '1 one pod'), 2: scale(2, '2 two pods') }
  const problem = await showUntil(
    { proxy: demo.proxy, terminal, notes: new NoteCapture(terminal), introduction, keys },
    [interrupted, demo.proxyEnded],
  )
  if (problem !== undefined) throw new ProxyError('demo', problem)
}

type ShownView = Omit<LiveViewOptions, 'signal' | 'introduction'> & { readonly introduction: string }

/** Shows the live view until the user quits or one of the promises resolves. Returns what that promise resolved with. */
async function showUntil<T>(view: ShownView, ends: readonly Promise<T | undefined>[]): Promise<T | undefined> {
  const { terminal, introduction } = view
  terminal.write(introduction)
  const stop = new AbortController()
  const shown = watchProxy({
    ...view,
    introduction: stripColours(introduction).trimEnd().split('\n'),
    signal: stop.signal,
  })
  // On a pipe the events may end before the proxy does; only a user who quits ends the command.
  const quit = shown.then((how) => (how === 'quit' ? undefined : new Promise<undefined>(() => {})))
  try {
    return await Promise.race([quit, ...ends])
  } finally {
    stop.abort()
    await shown
  }
}

async function runStandalone({ terminal: given, flags }: Invocation, mode: Mode): Promise<number> {
  const signal = interruptSignal()
  const notes = new NoteCapture(given)
  const { terminal } = notes
  const progress = new Progress(terminal)
  const standalone = await Standalone.start({ mode, flags, progress, signal })
  if (standalone === undefined) return 0
  try {
    const { proxy } = standalone
    await withDashboard(flags, proxy, async (page) => {
      const view = { proxy, terminal, notes, introduction: page + (await standalone.introduce()) }
      const failure = await showUntil<ProxyError>(view, [aborted(signal), standalone.ended])
      if (failure !== undefined) throw failure
    })
  } finally {
    await progress.report(flags.has('keep-rules') ? 'Stopping' : 'Removing everything', () => standalone.close())
  }
  return 0
}

/** Calls `show` with a line that says where the page is, and serves the page until `show` ends. Without the page the rest still works. */
async function withDashboard(
  flags: Flags,
  proxy: AdminClient,
  show: (introduction: string) => Promise<void>,
): Promise<void> {
  if (flags.has('no-dashboard')) return show('')
  const started = await startOwnDashboard(proxy).catch((error: unknown) => describeError(error))
  if (typeof started === 'string') return show(`The dashboard cannot be served: ${started}\n`)
  try {
    await show(`Dashboard: ${started.url}\n`)
  } finally {
    await started.close()
  }
}

/** Aborts at the first Ctrl-C, SIGTERM or hangup of the terminal; a second one ends the process without cleanup. */
function interruptSignal(): AbortSignal {
  const interrupt = new AbortController()
  const onSignal = () => {
    if (interrupt.signal.aborted) process.exit(1)
    interrupt.abort()
  }
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, onSignal)
  return interrupt.signal
}

function aborted(signal: AbortSignal): Promise<undefined> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve(undefined)
    else signal.addEventListener('abort', () => resolve(undefined), { once: true })
  })
}
