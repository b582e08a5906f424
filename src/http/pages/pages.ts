// The pages of the metrics server: its own /healthz, metrics, mode, configuration and verbosity. zpages.ts has /flagz and /statusz,
// profile.ts has the profiles.

import type { Mode } from '../../backend/backend.ts'
import type { Clock } from '../../lib/time.ts'
import type { BuildVersion, Metrics } from '../metrics.ts'
import { checkHost, type Exchange, type Route, type Routes, readBody, reply, replyText } from '../routing.ts'
import { openMetricsType, prefersOpenMetrics, toOpenMetrics } from './open-metrics.ts'
import { makeProfilePages } from './profile.ts'
import { makeFlagsPage, makeStatusPage } from './zpages.ts'

export interface PagesOptions {
  readonly mode: Mode
  readonly metrics: Pick<Metrics, 'contentType' | 'text' | 'slis' | 'resetSlis' | 'checked'>
  /** The v1alpha1 object, `apiVersion` and `kind` included. */
  readonly configz: () => object
  readonly flags: ReadonlyMap<string, string>
  /** Feature gates ComponentFlagz and ComponentStatusz. */
  readonly gates: { readonly flagz: boolean; readonly statusz: boolean }
  readonly version: BuildVersion
  /** Unix ms. */
  readonly startedAt: number
  readonly profiling: boolean
  readonly setVerbosity: (level: number) => void
  readonly clock: Clock
  /** The names of this node, in lower case: a request for another name may come from a tricked browser and is refused. */
  readonly hostNames: ReadonlySet<string>
}

/** Load balancers and probes send any Host here, and the answers are no secret. */
const openPages: ReadonlySet<string> = new Set(['/healthz', '/healthz/ping'])

export function makeMetricsPages(options: PagesOptions): Routes {
  const { metrics } = options
  const routes: Record<string, Route> = {
    '/healthz': (exchange) => answerHealth(exchange, metrics),
    '/healthz/ping': ({ response }) => replyText(response, 200, 'ok'),
    '/metrics': async (exchange) => replyMetrics(exchange, metrics.contentType, await metrics.text()),
    '/metrics/slis': (exchange) => {
      const { method, response } = exchange
      if (method === 'DELETE') {
        metrics.resetSlis()
        return replyText(response, 200, 'metrics reset\n')
      }
      replyMetrics(exchange, metrics.contentType, metrics.slis())
    },
    '/proxyMode': ({ response }) => replyText(response, 200, options.mode),
    '/configz': ({ response }) =>
      reply(response, {
        status: 200,
        type: 'application/json',
        body: JSON.stringify({ 'kubeproxy.config.k8s.io': options.configz() }),
      }),
  }
  if (options.profiling) {
    routes['/debug/flags/v'] = (exchange) => changeVerbosity(exchange, options.setVerbosity)
    Object.assign(routes, makeProfilePages(options.clock))
  }
  if (options.gates.flagz) routes['/flagz'] = makeFlagsPage(options.flags)
  if (options.gates.statusz) routes['/statusz'] = makeStatusPage({ ...options, paths: () => Object.keys(routes) })
  return checkHost(routes, options.hostNames, openPages)
}

function replyMetrics({ request, response }: Exchange, type: string, body: string): void {
  if (prefersOpenMetrics(request.headers.accept))
    reply(response, { status: 200, type: openMetricsType, body: toOpenMetrics(body) })
  else reply(response, { status: 200, type, body })
}

/** There is one check, `ping`, which always passes because this server answers. */
function answerHealth({ query, response }: Exchange, metrics: PagesOptions['metrics']): void {
  const excluded = new Set(query.getAll('exclude'))
  const lines: string[] = []
  if (excluded.delete('ping')) lines.push('[+]ping excluded: ok')
  else {
    metrics.checked('ping', 'healthz', true)
    lines.push('[+]ping ok')
  }
  if (excluded.size > 0) {
    const names = [...excluded].map((name) => JSON.stringify(name)).join(', ')
    lines.push(`warn: some health checks cannot be excluded: no matches for ${names}`)
  }
  lines.push('healthz check passed')
  replyText(response, 200, query.has('verbose') ? `${lines.join('\n')}\n` : 'ok')
}

async function changeVerbosity({ method, request, response }: Exchange, set: (level: number) => void): Promise<void> {
  const answer = (status: number, line: string) => reply(response, { status, type: 'text/plain', body: `${line}\n` })
  if (method !== 'PUT') return answer(406, 'only PUT is allowed here')
  const body = await readBody(request, 64)
  if (body === undefined || !/^[+-]?\d{1,9}$/.test(body)) {
    return answer(400, 'cannot set the verbosity: the body must be one whole number and nothing else')
  }
  set(Number(body))
  answer(200, `successfully set klog.logging.verbosity to ${body}`)
}
