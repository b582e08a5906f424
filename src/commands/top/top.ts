// `sluice top`: shows a running proxy live, on this node or on another.

import type { AdminEvent } from '../../http/admin.ts'
import { ProxyError } from '../../lib/errors.ts'
import { formatTime } from '../../lib/time.ts'
import { type Command, type Invocation, noArguments } from '../command.ts'
import { proxyFlags, reachProxy } from '../sources/source.ts'
import { answerVersion } from '../terminal.ts'
import { watchProxy } from './live-view.ts'
import { NoteCapture } from './note-capture.ts'

export const topCommand: Command = {
  name: 'top',
  usage: '[flags]',
  about: `Shows the services of a running proxy with their endpoints and connections, what is wrong, and why the last syncs happened, and
follows the proxy. On a pipe, prints one line per event. ? shows the keys, q ends the view. The view only reads.`,
  flags: [
    ...proxyFlags,
    {
      name: 'output',
      short: 'o',
      value: 'FORMAT',
      help: 'lines for people, json for programs: one event per line (default: the view, or lines on a pipe)',
      choices: ['lines', 'json'],
    },
  ],
  examples: [
    ['sluice top', 'the proxy of this node'],
    ['sluice top --node worker-3', 'the proxy of another node, through the API server'],
    ['sluice top | tee events.log', 'one line per event'],
    ['sluice top -o json', 'one JSON object per event'],
  ],
  arguments: noArguments,
  run,
}

async function run({ flags, terminal }: Invocation): Promise<number> {
  const proxy = await reachProxy(flags)
  if (proxy === undefined) throw new ProxyError('usage', '--manifests has no running proxy to show')
  const output = flags.get('output')
  const notes = new NoteCapture(terminal)
  const stop = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => stop.abort())
  await watchProxy({
    proxy,
    terminal: output === undefined ? terminal : { ...terminal, interactive: false },
    signal: stop.signal,
    notes,
    ...(output === 'json' ? { formatEvent: formatJson } : {}),
  })
  return 0
}

const formatJson = (event: AdminEvent, at: number): string =>
  `${JSON.stringify({ apiVersion: answerVersion, kind: 'ProxyEvent', time: formatTime(at), event })}\n`
