// Selects flows by service, client and verdict, and describes them for the admin socket. Pure.

import type { LoggedFlow } from '../../engine/flows/flow-log.ts'
import type { FlowQuery, FlowSummary } from '../../http/admin-flows.ts'
import { ProxyError } from '../../lib/errors.ts'
import { canonicalIp, contains, hostPort, parseCidr, splitHostPort } from '../../lib/ip.ts'
import { formatTime } from '../../lib/time.ts'

/** Both parts of a filter: the first needs no names of pods. */
export interface FlowSelection {
  readonly selects: (flow: LoggedFlow) => boolean
  readonly selectsNamed: (flow: FlowSummary) => boolean
}

/** Throws a ProxyError 'question' if the client is not an address, a CIDR or a pod. */
export function makeFlowFilter({ service, from, verdicts }: FlowQuery): FlowSelection {
  const hasAddress = from === '' ? () => true : addressFilter(from)
  return {
    selects: (flow) =>
      (service === '' || flow.port.service === service || flow.port.name === service) &&
      (verdicts.length === 0 || verdicts.includes(flow.verdict)) &&
      (hasAddress === undefined || hasAddress(flow.source)),
    selectsNamed: (flow) => hasAddress !== undefined || flow.fromPod === from,
  }
}

/** The same selection for flows that are described already. Throws as `makeFlowFilter` does. */
export function selectFlows({ service, from, verdicts }: FlowQuery): (flow: FlowSummary) => boolean {
  const hasAddress = from === '' ? () => true : addressFilter(from)
  return (flow) =>
    (service === '' || flow.service === service || flow.service.startsWith(`${service}:`)) &&
    (verdicts.length === 0 || verdicts.includes(flow.verdict)) &&
    (hasAddress === undefined ? flow.fromPod === from : hasAddress(splitHostPort(flow.from)?.host ?? ''))
}

/** Undefined if the text names a pod. */
function addressFilter(from: string): ((ip: string) => boolean) | undefined {
  const ip = canonicalIp(from)
  if (ip !== undefined) return (source) => source === ip
  const cidr = parseCidr(from)
  if (cidr !== undefined) return (source) => contains(cidr, source)
  if (/^[a-z0-9.-]+\/[a-z0-9.-]+$/.test(from)) return undefined
  throw new ProxyError('question', `"${from}" is not an address, a CIDR or NAMESPACE/POD`)
}

export function describeFlow(
  flow: LoggedFlow,
  pods: { readonly client: string; readonly endpoint: string },
): FlowSummary {
  return {
    id: flow.id,
    family: flow.family,
    protocol: flow.protocol,
    from: hostPort(flow.source, flow.sourcePort),
    fromPod: pods.client,
    to: hostPort(flow.destination, flow.destinationPort),
    service: flow.port.name,
    endpoint: flow.endpoint,
    endpointPod: pods.endpoint,
    verdict: flow.verdict,
    rule: flow.rule,
    startedAt: flow.startedAt === undefined ? null : formatTime(flow.startedAt),
    endedAt: flow.endedAt === undefined ? null : formatTime(flow.endedAt),
    traffic: flow.traffic ?? null,
  }
}
