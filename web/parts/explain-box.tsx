// Asks what happens to a packet from any client to a frontend of the service, and shows the answer as a picture and in words.

import { useState } from 'preact/hooks'
import type { EndpointCandidate, EntrySummary, Explanation } from '../../src/http/admin.ts'
import type { EndpointActivity } from '../endpoint-activity.ts'
import { useNarrow } from '../pages/services-page.tsx'
import { useAnswer } from '../use-live.ts'
import { formatShare } from '../words.ts'
import { CopyCommand } from './copy-command.tsx'
import { PathPicture } from './path-picture.tsx'
import { Badge, Empty, Problem, Section, Waiting } from './states.tsx'

export interface ExplainBoxProps {
  /** `10.96.0.10:53/udp` and the like. */
  readonly targets: readonly string[]
  /** Differs when the service has changed. */
  readonly version: string
  readonly traffic: EndpointActivity
}

export function ExplainBox({ targets, version, traffic }: ExplainBoxProps) {
  const [target, setTarget] = useState(targets[0] ?? '')
  const [draft, setDraft] = useState('')
  const [from, setFrom] = useState('')
  const { answer, error, isAsking } = useAnswer<readonly Explanation[]>(
    target === '' ? '' : 'explain',
    { target, from },
    version,
  )
  const submit = (event: Event) => {
    event.preventDefault()
    setFrom(draft.trim())
  }
  if (target === '') return <Empty title="No client can reach this service">It has no address that answers.</Empty>
  return (
    <Section
      title="Path of a packet"
      end={<CopyCommand words={['explain', target, ...(from === '' ? [] : ['--from', from])]} />}
    >
      <form class="explain-form" onSubmit={submit}>
        <label>
          to
          <select value={target} onChange={({ currentTarget }) => setTarget(currentTarget.value)}>
            {targets.map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
          </select>
        </label>
        <label>
          from
          <input
            value={draft}
            placeholder="this node; address or pod/ns/name"
            spellcheck={false}
            autocomplete="off"
            onInput={({ currentTarget }) => setDraft(currentTarget.value)}
          />
        </label>
        <button type="submit">Explain</button>
      </form>
      <Problem text={error} />
      {isAsking && answer === undefined ? <Waiting what="the explanation" /> : null}
      {answer?.map((explanation, index) => (
        <Explained key={index} explanation={explanation} traffic={traffic} />
      ))}
    </Section>
  )
}

function Explained({ explanation, traffic }: { explanation: Explanation; traffic: EndpointActivity }) {
  const isNarrow = useNarrow()
  const trafficOf = (address: string) => ({ isBusy: traffic.isBusy(address), text: traffic.describe(address) })
  return (
    <>
      <PathPicture explanation={explanation} traffic={trafficOf} isNarrow={isNarrow} />
      <ol class="steps">
        {explanation.steps.map((step) => (
          <li key={step}>{step}</li>
        ))}
      </ol>
      {explanation.remarks.map((remark) => (
        <Problem key={remark} text={remark} />
      ))}
      <Candidates endpoints={explanation.endpoints} traffic={traffic} />
      <Entries entries={explanation.entries} />
    </>
  )
}

function Candidates(props: { endpoints: readonly EndpointCandidate[]; traffic: EndpointActivity }) {
  const { endpoints, traffic } = props
  if (endpoints.length === 0) return null
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Endpoints">
      <table class="table">
        <thead>
          <tr>
            <th scope="col">endpoint</th>
            <th scope="col">node</th>
            <th scope="col" class="number">
              share
            </th>
            <th scope="col" class="number">
              traffic
            </th>
            <th scope="col">sees</th>
            <th scope="col">why</th>
          </tr>
        </thead>
        <tbody>
          {endpoints.slice(0, 200).map(({ address, node, probability, snat, why }) => (
            <tr key={address} class={probability === 0 ? 'unused' : ''}>
              <th scope="row" class="mono">
                {address}
              </th>
              <td>{node || '–'}</td>
              <td class="number">{formatShare(probability)}</td>
              <td class="number">{traffic.describe(address)}</td>
              <td>{probability === 0 ? '–' : seenSource(snat)}</td>
              <td class="wide">{why}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

function seenSource(snat: boolean | null): string {
  if (snat === null) return 'not known'
  return snat ? 'this node (masquerade)' : 'the client'
}

const presences: Readonly<Record<EntrySummary['kernel'], readonly [level: string, word: string]>> = {
  present: ['good', 'in the kernel'],
  byName: ['good', 'there by name'],
  missing: ['bad', 'missing'],
  differs: ['bad', 'differs'],
  unchecked: ['plain', 'not checked'],
}

function Entries({ entries }: { entries: readonly EntrySummary[] }) {
  if (entries.length === 0) return null
  return (
    <details class="entries">
      <summary>{entries.length === 1 ? '1 entry' : `${entries.length} entries`} of the data plane</summary>
      <ul>
        {entries.map(({ kind, name, content, command, kernel }) => (
          <li key={`${kind} ${name} ${content}`}>
            <Badge level={presences[kernel][0]}>{presences[kernel][1]}</Badge> <span class="mono">{name}</span>{' '}
            <span class="muted">{content}</span>
            {command === '' ? null : <code>{command}</code>}
          </li>
        ))}
      </ul>
    </details>
  )
}
