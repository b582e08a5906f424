// The page of one service: its addresses, the picture of a packet's path with an explain box for any client, and its recent changes.

import { useMemo, useState } from 'preact/hooks'
import type { PortSummary, ServiceSummary } from '../../src/http/admin.ts'
import type { HistoryAnswer } from '../../src/http/admin-history.ts'
import type { PageConnections, ServicePage } from '../../src/http/admin-page.ts'
import type { Traffic } from '../../src/http/admin-traffic.ts'
import { type EndpointActivity, readActivity } from '../endpoint-activity.ts'
import { CopyCommand } from '../parts/copy-command.tsx'
import { ExplainBox } from '../parts/explain-box.tsx'
import { Badge, Empty, Problem, Section, Waiting } from '../parts/states.tsx'
import { Timeline } from '../parts/timeline.tsx'
import { hashOf } from '../route.ts'
import { useAnswer, useLive } from '../use-live.ts'
import { formatCount, plural } from '../words.ts'

export function ServicePageView({ name }: { name: string }) {
  const { overview } = useLive()
  const { answer, error, isAsking } = useAnswer<ServicePage>('service', { name }, overview?.revision)
  const services = answer?.comparison.services ?? []
  return (
    <>
      <p class="crumbs">
        <a href={hashOf('services')}>Services</a> /
      </p>
      <div class="title-row">
        <h1>{name}</h1>
        <CopyCommand words={['status', name]} />
      </div>
      <Problem text={error} />
      {isAsking && answer === undefined ? <Waiting what="the service" /> : null}
      {answer !== undefined && services.length === 0 ? (
        <Empty title="There is no such service">It may have been deleted, or it has no cluster IP.</Empty>
      ) : null}
      {services.length > 0 ? <ServiceDetails name={name} services={services} /> : null}
      {answer === undefined ? null : <Changes name={name} revision={overview?.revision ?? ''} />}
    </>
  )
}

function ServiceDetails({ name, services }: { name: string; services: readonly ServiceSummary[] }) {
  const counted = useAnswer<PageConnections>('connections', {}, '', 5_000)
  const targets = useMemo(() => listTargets(services), [services])
  const figures = useAnswer<Traffic>('traffic', { service: name }, '', 5_000)
  const traffic = useMemo(
    () => readActivity(name, counted.answer, figures.answer),
    [name, counted.answer, figures.answer],
  )
  return (
    <>
      <ServiceProblems services={services} />
      <ExplainBox key={name} targets={targets} version={JSON.stringify(services)} traffic={traffic} />
      <Ports services={services} traffic={traffic} />
      <KernelCheck name={name} />
    </>
  )
}

/** What `explain` understands for each frontend: `10.96.0.10:53/udp`, `:30080/tcp`. */
const listTargets = (services: readonly ServiceSummary[]): readonly string[] => [
  ...new Set(
    services.flatMap(({ ports }) =>
      ports.flatMap(({ frontends, protocol }) =>
        frontends.flatMap(({ answersAt }) => (answersAt === '' ? [] : [`${answersAt}/${protocol}`])),
      ),
    ),
  ),
]

function ServiceProblems({ services }: { services: readonly ServiceSummary[] }) {
  const problems = services.flatMap(({ quarantine, lost, wrong, pending, ports }) => [
    ...(quarantine === '' ? [] : [`In quarantine: ${quarantine}`]),
    ...lost.map((one) => `Lost an address: ${one}`),
    ...wrong,
    ...ports.flatMap(({ ejected }) => ejected.map((one) => `Left out for a while: ${one}`)),
    ...(pending ? ['A change waits for a sync.'] : []),
  ])
  return (
    <>
      {[...new Set(problems)].map((problem) => (
        <Problem key={problem} text={problem} />
      ))}
    </>
  )
}

const policies: Readonly<Record<PortSummary['internal'], string>> = {
  cluster: 'any endpoint',
  local: 'endpoints of this node',
  reject: 'refused',
  drop: 'dropped',
}

function Ports({ services, traffic }: { services: readonly ServiceSummary[]; traffic: EndpointActivity }) {
  const ports = services.flatMap(({ family, ports: own }) => own.map((port) => ({ family, port })))
  return (
    <Section title="Ports">
      {ports.length === 0 ? <Empty title="No port is programmed" /> : null}
      <div class="cards">
        {ports.map(({ family, port }) => (
          <section
            key={`${family} ${port.name} ${port.protocol}`}
            class="card"
            aria-label={`${port.name}, IPv${family}`}
          >
            <h3>
              {port.name}{' '}
              <span class="muted">
                {port.protocol}, IPv{family}
              </span>
            </h3>
            <dl>
              {port.frontends.map(({ kind, answersAt }) => (
                <div key={`${kind} ${answersAt}`}>
                  <dt>{kind.replace('-', ' ')}</dt>
                  <dd class="mono">{answersAt || 'nowhere'}</dd>
                </div>
              ))}
              <div>
                <dt>from inside</dt>
                <dd>{policies[port.internal]}</dd>
              </div>
              <div>
                <dt>from outside</dt>
                <dd>{policies[port.external]}</dd>
              </div>
              <div>
                <dt>affinity</dt>
                <dd>{port.affinitySeconds === 0 ? 'none' : `client IP, ${port.affinitySeconds} s`}</dd>
              </div>
            </dl>
            <Endpoints port={port} traffic={traffic} />
          </section>
        ))}
      </div>
    </Section>
  )
}

const shownEndpoints = 100

function Endpoints({ port: { endpoints }, traffic }: { port: PortSummary; traffic: EndpointActivity }) {
  if (endpoints.length === 0) return <p class="warn">No usable endpoint: connections are refused.</p>
  return (
    <>
      <p class="muted">{plural(endpoints.length, 'usable endpoint')}</p>
      <ul class="endpoints">
        {endpoints.slice(0, shownEndpoints).map(({ address, local }) => (
          <li key={address}>
            <span class="mono">{address}</span> {local ? <Badge level="plain">here</Badge> : null}
            <span class="number muted">{traffic.describe(address)}</span>
          </li>
        ))}
        {endpoints.length > shownEndpoints ? (
          <li class="muted">and {formatCount(endpoints.length - shownEndpoints)} more</li>
        ) : null}
      </ul>
    </>
  )
}

/** The kernel is read when the reader asks for it: with very many services that takes the proxy a while. */
function KernelCheck({ name }: { name: string }) {
  const [asked, setAsked] = useState(0)
  const { answer, error, isAsking } = useAnswer<ServicePage>(
    asked === 0 ? '' : 'service',
    { name, kernel: '1' },
    String(asked),
  )
  const services = answer?.comparison.services ?? []
  return (
    <Section title="In the kernel" end={<CopyCommand words={['status', name]} />}>
      <p>
        <button type="button" onClick={() => setAsked(asked + 1)}>
          {asked === 0 ? 'Compare with the kernel' : 'Compare again'}
        </button>{' '}
        {isAsking && asked > 0 ? <span class="muted">reading …</span> : null}
      </p>
      <Problem text={error} />
      <div role="status">
        {services.map(({ family, entries, inKernel, wrong }) => (
          <p key={family}>
            <Badge level={wrong.length === 0 ? 'good' : 'bad'}>IPv{family}</Badge>{' '}
            {wrong.length === 0
              ? `all ${plural(entries, 'entry').replace('entrys', 'entries')} as wanted${(inKernel?.unchecked ?? 0) > 0 ? `, ${inKernel?.unchecked} not comparable` : ''}`
              : wrong.slice(0, 5).join('; ')}
          </p>
        ))}
      </div>
    </Section>
  )
}

/** A sync of the whole proxy changes the revision, and may have changed this service. */
function Changes({ name, revision }: { name: string; revision: string }) {
  const { answer, error } = useAnswer<HistoryAnswer>('history', { service: name }, revision)
  return (
    <Section title="Recent changes" end={<CopyCommand words={['history', name]} />}>
      <Problem text={error} />
      {answer?.records.length === 0 ? (
        <Empty title="No change is remembered">The history of the proxy has no sync that changed this service.</Empty>
      ) : null}
      {answer === undefined ? null : <Timeline records={answer.records.slice(0, 20)} />}
    </Section>
  )
}
