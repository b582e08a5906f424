// Times in the protobuf form of a request body.

import { describe, expect, it } from 'vitest'
import { decodeProtobuf } from '../../../src/apiserver/protobuf/decode-protobuf.ts'
import { newEvent } from '../../../src/apiserver/schema/kinds.ts'

function varint(value: number): number[] {
  return value < 128 ? [value] : [(value & 127) | 128, ...varint(Math.floor(value / 128))]
}

const message = (number: number, ...bytes: readonly number[]): number[] => [number * 8 + 2, bytes.length, ...bytes]
const integer = (number: number, value: number): number[] => [number * 8, ...varint(value)]

describe('a time in a protobuf body', () => {
  // creationTimestamp has whole seconds; the MicroTime of an event has a fraction, which Go accepts only with six digits.
  it.each([
    [0, '2025-11-16T09:53:21Z'],
    [9_000_000, '2025-11-16T09:53:21.009000Z'],
    [123_456_000, '2025-11-16T09:53:21.123456Z'],
  ])('with %i nanoseconds is %s', (nanos, text) => {
    const seconds = Date.parse('2025-11-16T09:53:21Z') / 1000
    const time = [...integer(1, seconds), ...(nanos === 0 ? [] : integer(2, nanos))]
    const body = Buffer.from([0x6b, 0x38, 0x73, 0, ...message(2, ...message(2, ...time))])
    expect(decodeProtobuf(body, newEvent)).toMatchObject({ eventTime: text })
  })
})
