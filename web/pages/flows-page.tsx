// Flows live: who talks to which service and endpoint, since when, how much, and how it ended. The proxy follows flows only while this
// page is open.

import { useEffect, useState } from 'preact/hooks'
import type { FlowCoverage, FlowSummary } from '../../src/http/admin-flows.ts'
import type { FlowMessage } from '../../src/http/admin-page.ts'
import { parseAnswer } from '../ask.ts'
import { CopyCommand } from '../parts/copy-command.tsx'
import { Badge, Empty, Problem } from '../parts/states.tsx'
import { hashOf, replaceQuery } from '../route.ts'
import { formatBytes, formatClock, plural } from '../words.ts'

/** More rows than these nobody reads; the command has all of them. */
const maxFlows = 200

interface FlowState {
  /** The last changed first. */
  readonly flows: readonly FlowSummary[]
  readonly coverage: FlowCoverage | undefined
  readonly problem: string
}

const nothing: FlowState = { flows: [], coverage: undefined, problem: '' }

interface Selection {
  readonly service: string
  readonly from: string
}

export function FlowsPage({ query }: { query: URLSearchParams }) {
  const [chosen, setChosen] = useState<Selection>({
    service: query.get('service') ?? '',
    from: query.get('from') ?? '',
  })
  const state = useFlows(chosen)
  useEffect(() => replaceQuery('flows', { ...chosen }), [chosen])
  const words = [
    'flows',
    ...(chosen.service === '' ? [] : [chosen.service]),
    '--follow',
    ...(chosen.from === '' ? [] : ['--from', chosen.from]),
  ]
  return (
    <>
      <div class="title-row">
        <h1>Flows</h1>
        <p class="muted" role="status">
          {state.coverage === undefined ? 'Connecting …' : `Following: ${plural(state.flows.length, 'flow')} shown`}
        </p>
      </div>
      <div class="tools">
        <FlowForm chosen={chosen} onChoose={setChosen} />
        <CopyCommand words={words} />
      </div>
      <Problem text={state.problem} />
      {state.coverage === undefined ? null : <Coverage coverage={state.coverage} />}
      {state.coverage !== undefined && state.flows.length === 0 ? (
        <Empty title="No flow yet">A connection to a service of this node appears here as it begins.</Empty>
      ) : null}
      {state.flows.length === 0 ? null : <FlowTable flows={state.flows} />}
    </>
  )
}

function FlowForm({ chosen, onChoose }: { chosen: Selection; onChoose: (chosen: Selection) => void }) {
  const [draft, setDraft] = useState(chosen)
  const field = (name: keyof Selection, label: string, placeholder: string) => (
    <label>
      {label}
      <input
        value={draft[name]}
        placeholder={placeholder}
        spellcheck={false}
        autocomplete="off"
        onInput={({ currentTarget }) => setDraft({ ...draft, [name]: currentTarget.value })}
      />
    </label>
  )
  return (
    <form
      class="explain-form"
      onSubmit={(event) => {
        event.preventDefault()
        onChoose({ service: draft.service.trim(), from: draft.from.trim() })
      }}
    >
      {field('service', 'service', 'all; namespace/name')}
      {field('from', 'from', 'anyone; address or CIDR')}
      <button type="submit">Show</button>
    </form>
  )
}

function useFlows({ service, from }: Selection): FlowState {
  const [state, setState] = useState(nothing)
  useEffect(() => {
    setState(nothing)
    const source = new EventSource(
      `/api/flows/events?${new URLSearchParams({ service, from, limit: String(maxFlows) })}`,
    )
    source.onmessage = ({ data }) => setState((last) => take(last, parseAnswer<FlowMessage>(String(data))))
    return () => source.close()
  }, [service, from])
  return state
}

function take(state: FlowState, message: FlowMessage): FlowState {
  switch (message.kind) {
    case 'flows':
      return { flows: message.flows.slice(0, maxFlows), coverage: message.coverage, problem: '' }
    case 'coverage':
      return { ...state, coverage: message.coverage }
    case 'failed':
      return { ...state, problem: message.message }
    case 'flow': {
      const others = state.flows.filter(({ id }) => id !== message.flow.id)
      return { ...state, flows: [message.flow, ...others].slice(0, maxFlows) }
    }
  }
}

function Coverage({ coverage: { sampled, lost, skipped, remarks } }: { coverage: FlowCoverage }) {
  const words = [
    ...(sampled > 1 ? [`One in ${sampled} flows is shown, because there are so many.`] : []),
    ...(lost > 0 ? [`The kernel dropped notifications ${plural(lost, 'time')}: some flows are missing.`] : []),
    ...(skipped > 0 ? [`${plural(skipped, 'flow')} not shown, because there are too many.`] : []),
    ...remarks,
  ]
  return (
    <>
      {words.map((text) => (
        <p key={text} class="warn">
          {text}
        </p>
      ))}
    </>
  )
}

const heads = ['began', 'from', 'service', 'endpoint', 'how', 'traffic', 'ended']

function FlowTable({ flows }: { flows: readonly FlowSummary[] }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Flows">
      <table class="table">
        <thead>
          <tr>
            {heads.map((head) => (
              <th key={head} scope="col">
                {head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {flows.map((flow) => (
            <FlowRow key={flow.id} flow={flow} />
          ))}
        </tbody>
      </table>
    </div>
  )
}

const badVerdicts = new Set(['refused', 'dropped', 'rejected', 'reset'])

function FlowRow({ flow }: { flow: FlowSummary }) {
  const { startedAt, endedAt, from, fromPod, to, protocol, service, endpoint, endpointPod, verdict, rule, traffic } =
    flow
  const name = service.replace(/:[^:/]*$/, '')
  return (
    <tr>
      <td>{startedAt === null ? 'earlier' : formatClock(startedAt)}</td>
      <td>
        <span class="mono">{from}</span> <span class="muted">{fromPod}</span>
      </td>
      <td>
        <a href={hashOf('service', { name })}>{service}</a>{' '}
        <span class="muted mono">
          {to}/{protocol}
        </span>
      </td>
      <td>
        <span class="mono">{endpoint || '–'}</span> <span class="muted">{endpointPod}</span>
      </td>
      <td>
        <Badge level={badVerdicts.has(verdict) ? 'bad' : 'plain'}>{verdict}</Badge> <span class="muted">{rule}</span>
      </td>
      <td class="number">{traffic === null ? '–' : formatBytes(traffic.bytesIn + traffic.bytesOut)}</td>
      <td>{endedAt === null ? '–' : formatClock(endedAt)}</td>
    </tr>
  )
}
