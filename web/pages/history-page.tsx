// The history of the proxy as a timeline: why it synced, and what each sync changed.

import { useEffect, useState } from 'preact/hooks'
import type { HistoryAnswer, HistoryRecord } from '../../src/http/admin-history.ts'
import { CopyCommand } from '../parts/copy-command.tsx'
import { Empty, Problem, Waiting } from '../parts/states.tsx'
import { Timeline } from '../parts/timeline.tsx'
import { replaceQuery } from '../route.ts'
import { useAnswer, useLive } from '../use-live.ts'
import { formatClock } from '../words.ts'

export function HistoryPage({ query }: { query: URLSearchParams }) {
  const { overview } = useLive()
  const [draft, setDraft] = useState(query.get('service') ?? '')
  const [service, setService] = useState(draft)
  const [older, setOlder] = useState(0)
  const newest = useAnswer<HistoryAnswer>('history', { service }, overview?.revision)
  const next = useAnswer<HistoryAnswer>(older === 0 ? '' : 'history', { service, before: String(older) })
  const [kept, setKept] = useState<readonly HistoryRecord[]>([])
  useEffect(() => {
    setKept([])
    setOlder(0)
    replaceQuery('history', { service })
  }, [service])
  useEffect(() => {
    if (next.answer !== undefined) setKept((last) => merge(last, next.answer?.records ?? []))
  }, [next.answer])
  const records = merge(newest.answer?.records ?? [], kept)
  const isMore = (next.answer ?? newest.answer)?.truncated === true
  return (
    <>
      <div class="title-row">
        <h1>History</h1>
        <p class="muted">{describeReach(newest.answer)}</p>
      </div>
      <form
        class="tools"
        onSubmit={(event) => {
          event.preventDefault()
          setService(draft.trim())
        }}
      >
        <label class="search">
          <span class="unseen">Only this service</span>
          <input
            type="search"
            placeholder="All services; namespace/name shows one"
            value={draft}
            spellcheck={false}
            autocomplete="off"
            onInput={({ currentTarget }) => setDraft(currentTarget.value)}
          />
        </label>
        <CopyCommand words={['history', ...(service === '' ? [] : [service])]} />
      </form>
      <Problem text={newest.error || next.error} />
      {newest.answer === undefined && newest.error === '' ? <Waiting what="the history" /> : null}
      {newest.answer !== undefined && records.length === 0 ? (
        <Empty title="No sync is remembered">The next change of a Service or of its endpoints appears here.</Empty>
      ) : null}
      <Timeline records={records} />
      {isMore ? (
        <p>
          <button type="button" onClick={() => setOlder(records.at(-1)?.sync ?? 0)}>
            Show older syncs
          </button>
        </p>
      ) : null}
    </>
  )
}

function merge(a: readonly HistoryRecord[], b: readonly HistoryRecord[]): readonly HistoryRecord[] {
  const bySync = new Map([...b, ...a].map((record) => [record.sync, record]))
  return [...bySync.values()].sort((x, y) => y.sync - x.sync)
}

const describeReach = (answer: HistoryAnswer | undefined): string =>
  answer?.oldest == null ? ' ' : `since sync ${answer.oldest.sync}, ${formatClock(answer.oldest.at)}`
