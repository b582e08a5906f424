// Serves /flagz and /statusz: text for people, or a versioned object for clients that ask for exactly that.

import { stringify } from 'yaml'
import type { Clock } from '../../lib/time.ts'
import { formatTime } from '../../lib/time.ts'
import type { BuildVersion } from '../metrics.ts'
import { type Exchange, type Route, reply, replyText } from '../routing.ts'

const component = 'kube-proxy'
const group = 'config.k8s.io'
const versions: readonly string[] = ['v1alpha1', 'v1beta1']

export function makeFlagsPage(flags: ReadonlyMap<string, string>): Route {
  const sorted = [...flags].sort(([a], [b]) => (a < b ? -1 : 1))
  return (exchange) =>
    negotiate(exchange, 'Flagz', {
      plain: () => `${title('flags')}\n${sorted.map(([name, value]) => `${name}=${value}\n`).join('')}`,
      structured: () => (sorted.length === 0 ? {} : { flags: Object.fromEntries(sorted) }),
    })
}

export interface StatusFacts {
  readonly version: BuildVersion
  /** Unix ms. */
  readonly startedAt: number
  readonly clock: Clock
  readonly paths: () => readonly string[]
}

export function makeStatusPage({ version, startedAt, clock, paths }: StatusFacts): Route {
  const upSeconds = () => Math.max(0, Math.floor((clock.now() - startedAt) / 1000))
  const binary = version.kubernetes.replace(/^v/, '')
  const runtime = `Node.js ${process.version}`
  return (exchange) =>
    negotiate(exchange, 'Statusz', {
      plain: () => {
        const lines = [
          `Started: ${unixDate(startedAt)}`,
          `Up: ${uptime(upSeconds())}`,
          `Go version: none, ${runtime}`,
          `Binary version: ${binary}`,
          `Sluice version: ${version.sluice}`,
          `Paths: ${folders(paths()).join(' ')}`,
        ]
        return `${title('statusz')}\n${lines.join('\n')}\n`
      },
      structured: () => ({
        startTime: formatTime(Math.floor(startedAt / 1000) * 1000),
        uptimeSeconds: upSeconds(),
        goVersion: runtime,
        binaryVersion: binary,
        paths: folders(paths()),
      }),
    })
}

interface Forms {
  plain(): string
  /** The object without kind, apiVersion and metadata. */
  structured(): object
}

/** Without an Accept header the reply is text. JSON and YAML need `as`, `g` and `v`; everything else is not acceptable. */
function negotiate({ request, response }: Exchange, kind: string, forms: Forms): void {
  const accept = request.headers.accept?.trim() ?? ''
  const choice = accept === '' ? 'text' : firstAcceptable(accept, kind)
  if (choice === 'text') replyText(response, 200, forms.plain())
  else if (choice === undefined) refuse(response, offeredTypes(kind))
  else {
    const head = { kind, apiVersion: `${group}/${choice.version}`, metadata: { name: component } }
    const object = { ...head, ...forms.structured() }
    const yaml = choice.type === 'application/yaml'
    const body = yaml ? stringify(object) : `${JSON.stringify(object, undefined, 2)}\n`
    reply(response, { status: 200, type: choice.type, body })
  }
}

type Choice = 'text' | { readonly type: string; readonly version: string } | undefined

function firstAcceptable(accept: string, kind: string): Choice {
  for (const { type, parameters } of parseAccept(accept)) {
    const { as, g, v } = parameters
    const asked = as !== undefined || g !== undefined || v !== undefined
    if (!asked && (type === 'text/plain' || type === 'text/*' || type === '*/*')) return 'text'
    if (as !== kind || g !== group || v === undefined || !versions.includes(v)) continue
    if (type === 'application/json' || type === 'application/yaml') return { type, version: v }
    if (type === '*/*' || type === 'application/*') return { type: 'application/json', version: v }
  }
  return undefined
}

interface AcceptClause {
  readonly type: string
  readonly parameters: Readonly<Record<string, string>>
  readonly quality: number
}

/** Sorts by quality, then exact types before wildcards, then in the order of the header. */
function parseAccept(header: string): readonly AcceptClause[] {
  const clauses = header.split(',').map((clause): AcceptClause => {
    const [type = '', ...rest] = clause.split(';').map((part) => part.trim())
    const parameters = Object.fromEntries(
      rest.map((part) => {
        const equals = part.indexOf('=')
        return equals < 0 ? [part, ''] : [part.slice(0, equals).trim(), part.slice(equals + 1).trim()]
      }),
    )
    const quality = Number(parameters.q ?? 1)
    return { type: type.toLowerCase(), parameters, quality: Number.isNaN(quality) ? 0 : quality }
  })
  const stars = (clause: AcceptClause) => clause.type.split('*').length
  return clauses.filter(({ quality }) => quality > 0).sort((a, b) => b.quality - a.quality || stars(a) - stars(b))
}

const offeredTypes = (kind: string): readonly string[] => [
  'text/plain',
  ...['application/json', 'application/yaml'].map((type) => `${type};as=${kind};g=${group};v=${versions.join('|')}`),
]

function refuse(response: Exchange['response'], types: readonly string[]): void {
  const status = {
    kind: 'Status',
    apiVersion: 'v1',
    metadata: {},
    status: 'Failure',
    message: `not acceptable; this page is available as ${types.join(', ')}`,
    reason: 'NotAcceptable',
    code: 406,
  }
  reply(response, { status: 406, type: 'application/json', body: `${JSON.stringify(status)}\n` })
}

const title = (page: string): string =>
  `\n${component} ${page}\nFor debugging by people; the format may change at any time.\n`

/** Returns the first part of each path, once: `/metrics` for `/metrics/slis` and `/metrics`. */
const folders = (paths: readonly string[]): string[] =>
  [...new Set(paths.map((path) => `/${path.split('/')[1]}`))].filter((path) => path !== '/').sort()

function uptime(seconds: number): string {
  const two = (n: number) => String(n).padStart(2, '0')
  return `${Math.floor(seconds / 3600)} hr ${two(Math.floor(seconds / 60) % 60)} min ${two(seconds % 60)} sec`
}

/** Formats a time as date(1) does: `Wed Oct 16 21:03:43 UTC 2024`. */
function unixDate(unixMs: number): string {
  const [day, date, month, year, time] = new Date(unixMs).toUTCString().replace(',', '').split(' ') as string[]
  return `${day} ${month} ${String(Number(date)).padStart(2)} ${time} UTC ${year}`
}
