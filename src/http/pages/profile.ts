// Serves profiles of the running proxy at the paths of Go's pprof, in the formats of Chrome's developer tools.

import type { Session } from 'node:inspector'
import { pipeline } from 'node:stream/promises'
import { getHeapSnapshot } from 'node:v8'
import { type Clock, sleep } from '../../lib/time.ts'
import { type Exchange, type Route, type Routes, reply, replyNotFound, replyText } from '../routing.ts'

const pages: Readonly<Record<string, string>> = {
  allocs: 'where memory is allocated, sampled for ?seconds=30 (.heapprofile)',
  cmdline: 'the command line, separated by NUL',
  heap: 'everything on the heap (.heapsnapshot); the proxy stops while it is written',
  profile: 'where CPU time goes, for ?seconds=30 (.cpuprofile)',
}

export function makeProfilePages(clock: Clock): Routes {
  const profile = recordProfile(clock, {
    file: 'proxy.cpuprofile',
    start: ['Profiler.enable', 'Profiler.start'],
    stop: 'Profiler.stop',
  })
  const allocs = recordProfile(clock, {
    file: 'proxy.heapprofile',
    start: ['HeapProfiler.enable', 'HeapProfiler.startSampling'],
    stop: 'HeapProfiler.stopSampling',
  })
  return {
    '/debug/pprof': ({ response }) => {
      response.writeHead(301, { Location: '/debug/pprof/', 'Content-Length': 0 })
      response.end()
    },
    '/debug/pprof/': ({ path, response }) =>
      path === '/debug/pprof/' ? replyIndex(response) : replyNotFound(response),
    '/debug/pprof/cmdline': ({ response }) => replyText(response, 200, process.argv.join('\0')),
    '/debug/pprof/profile': profile,
    '/debug/pprof/allocs': allocs,
    '/debug/pprof/heap': async ({ response }) => {
      response.writeHead(200, attachment('proxy.heapsnapshot'))
      await pipeline(getHeapSnapshot(), response)
    },
  }
}

interface Recording {
  readonly file: string
  /** Methods of the inspector protocol. */
  readonly start: readonly string[]
  readonly stop: string
}

/** Allows one recording at a time: two would stop each other's profiler. */
function recordProfile(clock: Clock, { file, start, stop }: Recording): Route {
  let isBusy = false
  return async ({ query, response }) => {
    if (isBusy) return replyText(response, 503, 'another profile is being recorded\n')
    isBusy = true
    // Loaded here, since few proxies are ever profiled, and the module is expensive at a start.
    const inspector = process.getBuiltinModule('node:inspector')
    const session = new inspector.Session()
    const disconnected = new AbortController()
    response.on('close', () => disconnected.abort())
    try {
      session.connect()
      for (const method of start) await post(session, method)
      await sleep(clock, seconds(query) * 1000, disconnected.signal).catch(() => {})
      const { profile } = (await post(session, stop)) as { profile: unknown }
      if (!disconnected.signal.aborted) {
        const body = JSON.stringify(profile)
        reply(response, { status: 200, type: 'application/json', body, headers: attachment(file) })
      }
    } finally {
      session.disconnect()
      isBusy = false
    }
  }
}

function post(session: Session, method: string): Promise<unknown> {
  return new Promise((resolve, reject) => {
    session.post(method, (error: Error | null, result?: object) => (error === null ? resolve(result) : reject(error)))
  })
}

/** Thirty seconds by default, five minutes at most. */
function seconds(query: URLSearchParams): number {
  const asked = Number(query.get('seconds') ?? 30)
  return asked > 0 ? Math.min(asked, 300) : 30
}

const attachment = (file: string) => ({
  'Content-Type': 'application/octet-stream',
  'Content-Disposition': `attachment; filename="${file}"`,
})

function replyIndex(response: Exchange['response']): void {
  const items = Object.entries(pages).map(([page, what]) => `<li><a href="${page}">${page}</a>: ${what}</li>`)
  const body = `<!doctype html>\n<title>Profiles</title>\n<h1>Profiles</h1>\n<ul>\n${items.join('\n')}\n</ul>\n`
  reply(response, { status: 200, type: 'text/html; charset=utf-8', body })
}
