// An object of which the record was made while it was read. Most objects that come as protobuf are read so.

import type { DecodedRecord, JsonObject } from './fields.ts'

export class OrdinaryObject<R = unknown> {
  readonly [name: string]: unknown
  /** As much of the metadata as is needed besides the record, in the form of JSON. */
  readonly metadata: JsonObject
  readonly decoded: DecodedRecord<R>

  constructor(metadata: JsonObject, decoded: DecodedRecord<R>) {
    this.metadata = metadata
    this.decoded = decoded
  }
}

/** The record of an ordinary object; undefined if the object has yet to be decoded. */
export const takeDecoded = <R>(json: unknown): DecodedRecord<R> | undefined =>
  json instanceof OrdinaryObject ? (json as OrdinaryObject<R>).decoded : undefined
