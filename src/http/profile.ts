// Profiles of the running proxy, where Go programs have pprof; the formats are those of Chrome's developer tools.

import { Session } from 'node:inspector'
import { pipeline } from 'node:stream/promises'
import { getHeapSnapshot } from 'node:v8'
import { type Clock, sleep } from '../lib/time.ts'
import { type Exchange, notFound, type Route, type Routes, reply, text } from './server.ts'

const pages: Readonly<Record<string, string>> = {
  allocs: 'where memory is allocated, sampled for ?seconds=30 (.heapprofile)',
  cmdline: 'the command line, separated by NUL',
  heap: 'everything on the heap (.heapsnapshot); stops the proxy while it is taken',
  profile: 'where CPU time goes, for ?seconds=30 (.cpuprofile)',
}

export function profilePages(clock: Clock): Routes {
  const profile = recorder(clock, {
    file: 'proxy.cpuprofile',
    start: [['Profiler.enable'], ['Profiler.start']],
    stop: 'Profiler.stop',
  })
  const allocs = recorder(clock, {
    file: 'proxy.heapprofile',
    start: [['HeapProfiler.enable'], ['HeapProfiler.startSampling']],
    stop: 'HeapProfiler.stopSampling',
  })
  return {
    '/debug/pprof': ({ response }) => {
      response.writeHead(301, { Location: '/debug/pprof/', 'Content-Length': 0 })
      response.end()
    },
    '/debug/pprof/': ({ path, response }) => (path === '/debug/pprof/' ? index(response) : notFound(response)),
    '/debug/pprof/cmdline': ({ response }) => text(response, 200, process.argv.join('\0')),
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
  readonly start: readonly [method: string][]
  readonly stop: string
}

/** One recording at a time: two would stop each other's profiler. */
function recorder(clock: Clock, { file, start, stop }: Recording): Route {
  let busy = false
  return async ({ query, response }) => {
    if (busy) return text(response, 503, 'a profile is being taken already\n')
    busy = true
    const session = new Session()
    const gone = new AbortController()
    response.on('close', () => gone.abort())
    try {
      session.connect()
      for (const [method] of start) await post(session, method)
      await sleep(clock, seconds(query) * 1000, gone.signal).catch(() => {})
      const { profile } = (await post(session, stop)) as { profile: unknown }
      if (!gone.signal.aborted) {
        const body = JSON.stringify(profile)
        reply(response, { status: 200, type: 'application/json', body, headers: attachment(file) })
      }
    } finally {
      session.disconnect()
      busy = false
    }
  }
}

function post(session: Session, method: string): Promise<unknown> {
  return new Promise((resolve, reject) => {
    session.post(method, (error: Error | null, result?: object) => (error === null ? resolve(result) : reject(error)))
  })
}

/** Thirty seconds unless told; at most five minutes. */
function seconds(query: URLSearchParams): number {
  const asked = Number(query.get('seconds') ?? 30)
  return asked > 0 ? Math.min(asked, 300) : 30
}

const attachment = (file: string) => ({
  'Content-Type': 'application/octet-stream',
  'Content-Disposition': `attachment; filename="${file}"`,
})

function index(response: Exchange['response']): void {
  const items = Object.entries(pages).map(([page, what]) => `<li><a href="${page}">${page}</a>: ${what}</li>`)
  const body = `<!doctype html>\n<title>Profiles</title>\n<h1>Profiles</h1>\n<ul>\n${items.join('\n')}\n</ul>\n`
  reply(response, { status: 200, type: 'text/html; charset=utf-8', body })
}
