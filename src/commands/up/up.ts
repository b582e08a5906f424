// `sluice up`: an API server and the proxy in one command, for this machine; or a demo of both in a world of its own.

import type { Mode } from '../../backend/backend.ts'
import { defaultMode, findMode, modes } from '../../backend/modes.ts'
import { ProxyError } from '../../lib/errors.ts'
import { type Command, type Invocation, noArguments } from '../command.ts'
import { reportStep } from '../progress.ts'
import { modeFlag } from '../sources/source.ts'
import { Demo } from './demo/demo.ts'
import { introduction, play } from './demo/demo-story.ts'
import { watchProxy } from './live-view.ts'
import { Standalone } from './standalone.ts'

/** The modes that can serve without root. */
const rootless = modes.flatMap(({ name, unprivileged }) => (unprivileged === undefined ? [] : [name])).join(' or ')

export const upCommand: Command = {
  name: 'up',
  summary: 'an API server and the proxy in one, for this machine; --demo shows it in a world of its own',
  usage: '[flags]',
  about: `Starts a small API server on loopback and the proxy, so that Services work on this machine without a cluster: from kubectl, or from a
directory of YAML files that is watched. With --demo both run in network namespaces made for it: two nodes, pods, a client outside;
nothing of this machine's network is touched. Ctrl-C removes all that was made. Everything but --mode ${rootless} needs root.`,
  flags: [
    { ...modeFlag, help: `${modes.map(({ name }) => name).join(', ')} (default: ${defaultMode})` },
    { name: 'manifests', value: 'DIR', help: 'keep the YAML files of this directory applied', file: true },
    {
      name: 'state',
      value: 'DIR',
      help: 'keep objects and credentials here (default: they end with the command)',
      file: true,
    },
    { name: 'demo', help: 'in network namespaces of its own, with pods to talk to' },
    { name: 'once', help: 'with --demo: try everything, print it, remove all, exit 0 if it went as it should' },
    {
      name: 'scale',
      value: 'N',
      help: 'with --demo: begin with 1 or 2 pods of work/saythx-redis',
      choices: ['1', '2'],
    },
    { name: 'address', value: 'IP', help: 'where the API server listens (default 127.0.0.1)' },
    { name: 'port', value: 'PORT', help: 'of the API server (default 6443)' },
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
    { name: 'node-address', value: 'IP', help: 'address of this node (default: the one it uses towards the world)' },
    {
      name: 'nodeport-addresses',
      value: 'CIDR[,CIDR]',
      help: `where node ports answer: CIDRs, localhost, all (default: in ${defaultMode} mode the node address, else all)`,
    },
    {
      name: 'keep-rules',
      help: 'leave the rules in place at the end, and take over those of the last run at the start',
    },
    { name: 'take-over', help: 'start although rules of a proxy are there, and replace them' },
  ],
  examples: [
    ['sluice up --demo', 'see it work in two minutes'],
    ['sluice up --demo --once', 'the same, by itself'],
    ['sluice up --manifests /etc/sluice --state /var/lib/sluice', 'a load balancer for this machine, from YAML'],
    [`sluice up --mode ${rootless}`, 'without root, on loopback ports'],
  ],
  arguments: noArguments,
  run,
}

async function run(invocation: Invocation): Promise<number> {
  const mode = invocation.flags.get('mode') ?? defaultMode
  const demo = invocation.flags.has('demo')
  if (invocation.flags.has('once') && !demo) throw new ProxyError('usage', '--once goes with --demo')
  demandRoot(mode, demo)
  return demo ? runDemo(invocation, mode) : runHere(invocation, mode)
}

function demandRoot(mode: Mode, demo: boolean): void {
  if (process.getuid?.() === 0 || (findMode(mode).unprivileged !== undefined && !demo)) return
  const what = demo ? 'network namespaces' : `rules in the kernel (mode ${mode})`
  throw new ProxyError(
    'root',
    `this makes ${what}, which needs root: use sudo, or sluice up --mode ${rootless}, which serves node ports on loopback without it`,
  )
}

async function runDemo(invocation: Invocation, mode: Mode): Promise<number> {
  const { terminal, flags } = invocation
  const interrupted = interruption()
  const demo = await Demo.start({ mode, terminal })
  let good = true
  try {
    if (flags.get('scale') === '2') {
      await demo.scale(2)
      await demo.settled('work/saythx-redis', 2)
    }
    if (flags.has('once')) {
      good = await Promise.race([play(demo, terminal), interrupted.then(() => false)])
    } else {
      terminal.write(introduction(demo, terminal))
      const over = new AbortController()
      const view = watchProxy(demo.proxy, terminal, over.signal)
      const pressed = terminal.interactive ? keys(demo, over.signal) : new Promise<undefined>(() => {})
      const why = await Promise.race([interrupted, pressed, demo.proxyEnded])
      over.abort()
      await view
      if (why !== undefined) throw new ProxyError('demo', why)
    }
  } finally {
    await reportStep(terminal, 'Removing everything', () => demo.close())
  }
  return good ? 0 : 1
}

/** 1 and 2 scale, for those without kubectl; q and Ctrl-C, which raw mode makes a mere letter, end it. */
function keys(demo: Demo, signal: AbortSignal): Promise<undefined> {
  const { stdin } = process
  if (!stdin.isTTY) return new Promise(() => {})
  stdin.setRawMode(true)
  stdin.resume()
  signal.addEventListener('abort', () => {
    stdin.setRawMode(false)
    stdin.pause()
  })
  return new Promise((resolve) => {
    stdin.on('data', (chunk: Buffer) => {
      const key = chunk.toString()
      if (key === 'q' || key === '\x03') resolve(undefined)
      // The next picture shows whether it worked.
      else if (key === '1' || key === '2') demo.scale(Number(key) as 1 | 2).catch(() => {})
    })
  })
}

async function runHere(invocation: Invocation, mode: Mode): Promise<number> {
  const { terminal, flags } = invocation
  const interrupted = interruption()
  const here = await Standalone.start({ mode, flags, terminal })
  try {
    terminal.write(here.introduction())
    const over = new AbortController()
    const view = here.proxy === undefined ? Promise.resolve() : watchProxy(here.proxy, terminal, over.signal)
    const failure = await Promise.race([interrupted, here.ended])
    over.abort()
    await view
    if (failure !== undefined) throw failure
  } finally {
    await reportStep(terminal, flags.has('keep-rules') ? 'Stopping' : 'Removing everything', () => here.close())
  }
  return 0
}

/** Resolves at the first Ctrl-C, SIGTERM or lost terminal; a second one ends the process the hard way. */
function interruption(): Promise<undefined> {
  return new Promise((resolve) => {
    let times = 0
    const onSignal = () => {
      if (++times > 1) process.exit(1)
      resolve(undefined)
    }
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, onSignal)
  })
}
