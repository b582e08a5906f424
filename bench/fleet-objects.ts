// The objects of a cluster for bench/fleet.ts, as its users and controllers write them to a real API server.

import { service as numberedService, slice as numberedSlice } from './api-objects.ts'

export const namespace = 'fleet'
/** Slices of the large Service, and endpoints in each: the endpoint slice controller puts at most 100 into one. */
const largeParts = 10
const largeSliceSize = 100
/** Endpoints that one write of the rolling update replaces. */
const replacedPerWrite = 10
export const rollingWrites = (largeParts * largeSliceSize) / replacedPerWrite
/** Addresses below are the API server's own. */
const firstNumber = 1_000
const largeNumber = 40_000

type Metadata = { readonly name: string; readonly labels: Readonly<Record<string, string>> }
type ApiObject = { readonly metadata: Metadata }
type Slice = ApiObject & { readonly endpoints: readonly object[] }

/** Removes what only a server may write. */
function asWritten<T extends ApiObject>(object: T, name = object.metadata.name): T {
  const { labels } = object.metadata
  return { ...object, metadata: { name, namespace, labels } }
}

export const service = (i: number): ApiObject => asWritten(numberedService(firstNumber + i) as ApiObject)

/** The slice of service `i`; each `turn` has another address for the last endpoint. */
export const slice = (i: number, turn: number): Slice => asWritten(numberedSlice(firstNumber + i, 5, turn) as Slice)

/** The Service with 1,000 endpoints. */
export const largeService = (): ApiObject => asWritten(numberedService(largeNumber) as ApiObject)

/** One of its slices, after `replaced` of its endpoints have got other pods. */
function largeSlice(part: number, replaced: number): Slice {
  const before = numberedSlice(largeNumber, largeSliceSize, 0) as Slice
  const take = (number: number) => (numberedSlice(number + part, largeSliceSize, 0) as Slice).endpoints
  const endpoints = [...take(largeNumber + largeParts).slice(0, replaced), ...take(largeNumber).slice(replaced)]
  return { ...asWritten(before, `${before.metadata.name}-${part}`), endpoints }
}

export const largeSlices = (): readonly Slice[] => Array.from({ length: largeParts }, (_, part) => largeSlice(part, 0))

/** The `write`-th write of a rolling update: the slices take turns. An odd `round` brings the first pods back. */
export function rollingSlice(write: number, round: number): Slice {
  const replaced = (Math.floor(write / largeParts) + 1) * replacedPerWrite
  return largeSlice(write % largeParts, round % 2 === 0 ? replaced : largeSliceSize - replaced)
}
