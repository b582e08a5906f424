// The history on the admin socket: its routes, and how questions are read from their queries. The types are those of the engine.

import type { DifferenceAnswer, HistoryAnswer, HistoryPoint, HistoryQuestion } from '../engine/history/history.ts'
import { ProxyError } from '../lib/errors.ts'
import type { Exchange } from './routing.ts'

export type { DifferenceAnswer, HistoryAnswer, HistoryPoint, HistoryQuestion } from '../engine/history/history.ts'
export type { HistoryRecord } from '../engine/history/history-record.ts'

export interface HistoryAnswers {
  /** The last syncs with their causes and effects, newest first. */
  history(question: HistoryQuestion): HistoryAnswer
  /** What is different between two points; `service` is '' for all services. */
  historyDifference(from: HistoryPoint, to: HistoryPoint, service: string): DifferenceAnswer
}

const defaultLimit = 100
const maxLimit = 100_000

type Answer = (compute: (exchange: Exchange) => unknown) => (exchange: Exchange) => Promise<void>

export const makeHistoryRoutes = (answers: HistoryAnswers, answer: Answer) => ({
  '/v1/history': answer(({ query }) => answers.history(readQuestion(query))),
  '/v1/history/diff': answer(({ query }) =>
    answers.historyDifference(readPoint(query, 'from'), readPoint(query, 'to'), query.get('service') ?? ''),
  ),
})

function readQuestion(query: URLSearchParams): HistoryQuestion {
  const since = query.get('since') ?? ''
  return {
    service: query.get('service') ?? '',
    since: since === '' ? 0 : readTime('since', since),
    beforeSync: readNumber(query, 'before', 0),
    afterSync: readNumber(query, 'after', 0),
    limit: Math.min(maxLimit, readNumber(query, 'limit', defaultLimit)),
  }
}

/** The query of a question, for clients. */
export const writeQuestion = ({ service, since, beforeSync, afterSync, limit }: HistoryQuestion) => ({
  service,
  since: since === 0 ? '' : new Date(since).toISOString(),
  before: String(beforeSync),
  after: String(afterSync),
  limit: String(limit),
})

export const writePoint = (point: HistoryPoint): string =>
  'sync' in point ? String(point.sync) : new Date(point.time).toISOString()

/** A number is a sync; anything else is an RFC 3339 time. Without a value the point is now. */
function readPoint(query: URLSearchParams, name: string): HistoryPoint {
  const text = query.get(name) ?? ''
  if (text === '') return { sync: Number.MAX_SAFE_INTEGER }
  return /^\d+$/.test(text) ? { sync: Number(text) } : { time: readTime(name, text) }
}

function readTime(name: string, text: string): number {
  const time = Date.parse(text)
  if (Number.isNaN(time)) throw new ProxyError('question', `${name} is not a sync and not an RFC 3339 time: ${text}`)
  return time
}

function readNumber(query: URLSearchParams, name: string, otherwise: number): number {
  const text = query.get(name) ?? ''
  if (text === '') return otherwise
  if (!/^\d{1,15}$/.test(text)) throw new ProxyError('question', `${name} is not a number: ${text}`)
  return Number(text)
}
