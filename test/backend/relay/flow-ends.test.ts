// How a relayed flow ended, by what is left of its sockets.

import { describe, expect, it } from 'vitest'
import { type EndedSocket, judgeDial, judgeTcpEnd, judgeUdpEnd } from '../../../src/backend/relay/flow-ends.ts'
import { ProxyError } from '../../../src/lib/errors.ts'

const failure = (code: string): Error => Object.assign(new Error(code), { code })
const ended: EndedSocket = { readableEnded: true, errored: null }
const unfinished: EndedSocket = { readableEnded: false, errored: null }
const broken = (code: string): EndedSocket => ({ readableEnded: false, errored: failure(code) })

describe('a TCP connection', () => {
  it.each([
    ['closed', 'both sides have ended', ended, ended],
    ['reset', 'the endpoint has not ended', ended, unfinished],
    ['reset', 'the client has not ended', unfinished, ended],
    ['reset', 'the client broke it off', broken('ECONNRESET'), ended],
    ['reset', 'the endpoint broke it off after the client had ended', ended, broken('ECONNRESET')],
    ['timed-out', 'the client has vanished', broken('ETIMEDOUT'), unfinished],
    ['timed-out', 'the endpoint has vanished', unfinished, broken('EHOSTUNREACH')],
    ['reset', 'the client left before an endpoint answered', ended, undefined],
  ])('is %s if %s', (verdict, _, client, endpoint) => {
    expect(judgeTcpEnd(client, endpoint)).toBe(verdict)
  })
})

it.each([
  ['timed-out', new ProxyError('relay', 'the endpoint did not answer in time')],
  ['timed-out', failure('EHOSTUNREACH')],
  ['refused', failure('ECONNREFUSED')],
  ['refused', failure('ECONNRESET')],
])('a dial is %s after %s', (verdict, error) => {
  expect(judgeDial(error)).toBe(verdict)
})

it.each([
  ['expired', 'idle', 1],
  ['timed-out', 'idle', 0],
  ['refused', 'refused', 0],
  ['reset', 'refused', 1],
  ['closed', 'gone', 0],
  ['closed', 'gone', 1],
] as const)('a UDP flow is %s if it ends as %s after %i answers', (verdict, end, answers) => {
  expect(judgeUdpEnd(end, answers)).toBe(verdict)
})
