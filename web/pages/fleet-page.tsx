// The proxies of all nodes of a cluster, as `sluice nodes` lists them.

import { CopyCommand } from '../parts/copy-command.tsx'
import { Badge, Empty, Problem, Section, Waiting } from '../parts/states.tsx'
import { useAnswer, useNow } from '../use-live.ts'
import { formatAge, formatCount, plural } from '../words.ts'

/** What `sluice nodes -o json` says about a node, as far as the page shows it. */
interface FleetNodeAnswer {
  readonly node: string
  readonly program: string
  readonly version: string
  readonly mode: string
  readonly lastSync: string
  readonly reportedAt: string
  readonly services: number
  readonly families: readonly { readonly family: number; readonly stateHash: string }[]
  readonly state: 'ok' | 'differs' | 'failing' | 'silent' | 'unreported' | 'uncompared' | 'absent'
  readonly differences: readonly { readonly service: string; readonly how: string }[]
  readonly problems: readonly string[]
}

interface FleetView {
  readonly nodes: readonly FleetNodeAnswer[]
  readonly remarks: readonly string[]
}

export function FleetPage() {
  const { answer, error, isAsking } = useAnswer<FleetView>('fleet', {}, '', 10_000)
  const now = useNow(5_000)
  const different = answer?.nodes.filter(({ state }) => state === 'differs').length ?? 0
  return (
    <>
      <div class="title-row">
        <h1>Nodes</h1>
        {answer === undefined ? null : (
          <p class="muted">
            {plural(answer.nodes.length, 'node')}, {formatCount(different)} different from most
          </p>
        )}
      </div>
      <Problem text={error} />
      {isAsking && answer === undefined ? <Waiting what="the cluster" /> : null}
      {answer?.remarks.map((remark) => (
        <Problem key={remark} text={remark} />
      ))}
      {answer === undefined ? null : <NodeTable nodes={answer.nodes} now={now} />}
    </>
  )
}

function NodeTable({ nodes, now }: { nodes: readonly FleetNodeAnswer[]; now: number }) {
  const ago = (time: string) => (time === '' ? '–' : `${formatAge(now - Date.parse(time))} ago`)
  if (nodes.length === 0) return <Empty title="The cluster has no nodes" />
  return (
    <Section title="Proxies" end={<CopyCommand words={['nodes']} isFleet />}>
      <div class="scroll" tabIndex={0} role="region" aria-label="Proxies of all nodes">
        <table class="table">
          <thead>
            <tr>
              {['node', 'state', 'proxy', 'mode', 'services', 'state hash', 'last sync', 'report', 'what is wrong'].map(
                (head) => (
                  <th key={head} scope="col" class={head === 'services' ? 'number' : ''}>
                    {head}
                  </th>
                ),
              )}
            </tr>
          </thead>
          <tbody>
            {nodes.map((node) => (
              <tr key={node.node}>
                <th scope="row">{node.node}</th>
                <td>
                  <NodeBadge node={node} />
                </td>
                <td>
                  {node.program} <span class="muted">{node.version}</span>
                </td>
                <td>{node.mode || '–'}</td>
                <td class="number">{node.reportedAt === '' ? '–' : formatCount(node.services)}</td>
                <td class="mono">{node.families.map(({ stateHash }) => stateHash.slice(-8)).join(' ') || '–'}</td>
                <td>{ago(node.lastSync)}</td>
                <td>{ago(node.reportedAt)}</td>
                <td class="wide">{describeNode(node)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Section>
  )
}

function NodeBadge({ node }: { node: FleetNodeAnswer }) {
  const isBad = ['differs', 'failing', 'silent', 'absent'].includes(node.state)
  const isGood = node.state === 'ok' && node.problems.length === 0
  const level = isGood ? 'good' : 'warn'
  return <Badge level={isBad ? 'bad' : level}>{node.state}</Badge>
}

const describeNode = ({ problems, differences }: FleetNodeAnswer): string =>
  [
    ...problems,
    ...differences.slice(0, 5).map(({ service, how }) => `${service || 'an unknown service'}: ${how}`),
  ].join('; ')
