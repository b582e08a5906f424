// What the detector of outliers knows about an endpoint, and the settings of its decisions. Pure.

import type { Failure } from './failing-nodes.ts'

export interface OutlierSettings {
  /** Connections in a row that must fail. */
  readonly failures: number
  /** The share of a group that may be ejected, from 0 to 1. */
  readonly maxShare: number
  readonly intervalMs: number
  readonly maxIntervalMs: number
}

export interface Ejection {
  readonly why: string
  until: number
}

export interface EndpointState {
  readonly node: string
  /** The groups that have the endpoint. */
  readonly groups: Set<string>
  failures: number
  failingSince: number
  lastFailure: Failure
  answeredAt: number
  /** Undefined if the endpoint is not ejected. */
  ejection: Ejection | undefined
  isOnTrial: boolean
  /** True while the proxy itself finds out whether the ejected endpoint answers again. */
  isAsked: boolean
  /** How often it was ejected in a row. */
  times: number
  interval: number
}

export const makeState = (node: string, group: string): EndpointState => ({
  node,
  groups: new Set([group]),
  failures: 0,
  failingSince: Number.NEGATIVE_INFINITY,
  lastFailure: 'unanswered',
  answeredAt: Number.NEGATIVE_INFINITY,
  ejection: undefined,
  isOnTrial: false,
  isAsked: false,
  times: 0,
  interval: 0,
})
