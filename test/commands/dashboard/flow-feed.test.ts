import { describe, expect, it } from 'vitest'
import { FlowFeed } from '../../../src/commands/dashboard/flow-feed.ts'
import { selectFlows } from '../../../src/daemon/traffic/flow-filter.ts'
import type { AdminClient } from '../../../src/http/admin-client.ts'
import type { FlowEvent, FlowQuery, FlowSummary } from '../../../src/http/admin-flows.ts'
import type { FlowMessage } from '../../../src/http/admin-page.ts'
import { ProxyError } from '../../../src/lib/errors.ts'

const all: FlowQuery = { service: '', from: '', verdicts: [], limit: 100 }
const coverage = { sampled: 1, lost: 0, skipped: 0, watchers: 1, remarks: [] }

const flow = (id: string, more: Partial<FlowSummary> = {}): FlowSummary => ({
  ...{ id, family: 4, protocol: 'tcp', from: '10.1.0.7:4000', fromPod: 'shop/client', to: '10.96.0.1:80' },
  ...{ service: 'shop/web:http', endpoint: '10.2.0.1:8080', endpointPod: '', verdict: 'open', rule: '' },
  ...{ startedAt: null, endedAt: null, traffic: null },
  ...more,
})

const settle = () => new Promise((resolve) => setImmediate(resolve))

/** A proxy whose list is answered when the test says so. */
function open() {
  const streams: {
    readonly emit: (event: FlowEvent) => void
    readonly end: () => void
    readonly signal: AbortSignal
  }[] = []
  const lists: (() => void)[] = []
  const client = {
    flows: (query: FlowQuery) =>
      new Promise((resolve) =>
        lists.push(() => resolve({ flows: [flow('old', { service: query.service })], coverage })),
      ),
    followFlows: (_: FlowQuery, emit: (event: FlowEvent) => void, signal: AbortSignal) =>
      new Promise<void>((resolve) => {
        streams.push({ emit, signal, end: resolve })
        signal.addEventListener('abort', () => resolve())
      }),
  } as unknown as AdminClient
  const feed = new FlowFeed(async () => client)
  const join = (query: Partial<FlowQuery> = {}) => {
    const messages: FlowMessage[] = []
    const viewer = { ended: false, messages, leave: () => {} }
    viewer.leave = feed.subscribe(
      { ...all, ...query },
      {
        send: (message) => messages.push(message),
        end: () => {
          viewer.ended = true
        },
      },
    )
    return viewer
  }
  const answerLists = async () => {
    await settle()
    for (const answer of lists.splice(0)) answer()
    await settle()
  }
  return { streams, join, answerLists }
}

const shown = (messages: readonly FlowMessage[]) =>
  messages.map((message) => (message.kind === 'flow' ? message.flow.id : message.kind))

describe('flows for all viewers', () => {
  it('follows once for all, and stops when the last viewer leaves', async () => {
    const { streams, join, answerLists } = open()
    const viewers = [join(), join(), join()]
    await answerLists()
    expect(streams).toHaveLength(1)
    for (const viewer of viewers.slice(1)) viewer.leave()
    streams[0]?.emit({ kind: 'flow', flow: flow('a') })
    expect(viewers.map(({ messages }) => shown(messages))).toEqual([['flows', 'a'], ['flows'], ['flows']])
    expect(streams[0]?.signal.aborted).toBe(false)
    viewers[0]?.leave()
    expect(streams[0]?.signal.aborted).toBe(true)
    join()
    await answerLists()
    expect(streams).toHaveLength(2)
  })

  it('sends each viewer what it asked for, and what came before its list after the list', async () => {
    const { streams, join, answerLists } = open()
    const web = join({ service: 'shop/web' })
    const reset = join({ verdicts: ['reset'] })
    await settle()
    streams[0]?.emit({ kind: 'flow', flow: flow('early') })
    streams[0]?.emit({ kind: 'coverage', coverage: { ...coverage, sampled: 4 } })
    await answerLists()
    streams[0]?.emit({ kind: 'flow', flow: flow('other', { service: 'shop/db', verdict: 'reset' }) })
    expect(shown(web.messages)).toEqual(['flows', 'early', 'coverage'])
    expect(shown(reset.messages)).toEqual(['flows', 'coverage', 'other'])
    expect(web.messages[0]).toMatchObject({ coverage: { sampled: 4 } })
  })

  it('lets viewers come again when the proxy has ended, and not when their question is wrong', async () => {
    const { streams, join, answerLists } = open()
    const [one, wrong] = [join(), join({ from: 'not a client!' })]
    await answerLists()
    expect(wrong.messages).toEqual([{ kind: 'failed', message: expect.stringContaining('is not an address') }])
    expect([one.ended, wrong.ended]).toEqual([false, false])
    streams[0]?.end()
    await settle()
    expect(shown(one.messages)).toEqual(['flows', 'failed'])
    expect(one.ended).toBe(true)
  })
})

describe('the selection of described flows', () => {
  it.each<[Partial<FlowQuery>, boolean]>([
    [{}, true],
    [{ service: 'shop/web' }, true],
    [{ service: 'shop/web:http' }, true],
    [{ service: 'shop/we' }, false],
    [{ from: '10.1.0.7' }, true],
    [{ from: '10.1.0.0/16' }, true],
    [{ from: '10.1.0.8' }, false],
    [{ from: 'shop/client' }, true],
    [{ from: 'shop/other' }, false],
    [{ verdicts: ['reset', 'open'] }, true],
    [{ verdicts: ['reset'] }, false],
  ])('%j: %s', (query, expected) => {
    expect(selectFlows({ ...all, ...query })(flow('a'))).toBe(expected)
  })

  it('refuses what is not a client', () => {
    expect(() => selectFlows({ ...all, from: 'not a client!' })).toThrow(ProxyError)
  })
})
