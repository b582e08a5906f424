// Checks which connection has to go when there are too many.

import { EventEmitter } from 'node:events'
import { describe, expect, it } from 'vitest'
import { ConnectionLimit } from '../../src/lib/connection-limit.ts'

class FakeSocket extends EventEmitter {
  readonly remoteAddress: string
  readonly remotePort: number
  readonly localAddress = '192.0.2.1'
  readonly localPort = 10256
  isClosed = false

  constructor(remoteAddress: string, remotePort: number) {
    super()
    this.remoteAddress = remoteAddress
    this.remotePort = remotePort
  }

  destroy(): void {
    this.isClosed = true
    this.emit('close')
  }
}

function setUp(maxConnections: number, whenBusy: 'close-oldest' | 'refuse-new' = 'close-oldest') {
  const limit = new ConnectionLimit({ maxConnections, whenBusy })
  let port = 0
  const add = (address = '10.0.0.1'): FakeSocket => {
    const socket = new FakeSocket(address, ++port)
    limit.add(socket)
    return socket
  }
  const serve = (socket: FakeSocket): EventEmitter => {
    const response = new EventEmitter()
    limit.serve(socket, response)
    return response
  }
  return { limit, add, serve }
}

const closed = (sockets: readonly FakeSocket[]) => sockets.map(({ isClosed }) => isClosed)

describe('a full limit', () => {
  it('closes the connection that waits longest for a request', () => {
    const { limit, add } = setUp(2)
    const sockets = [add('10.0.0.1'), add('10.0.0.2'), add('10.0.0.3')]
    expect(closed(sockets)).toEqual([true, false, false])
    expect(limit.size).toBe(2)
  })

  it('closes an idle connection before an older one that is being served', () => {
    const { add, serve } = setUp(2)
    const busy = add('10.0.0.1')
    serve(busy)
    const sockets = [busy, add('10.0.0.2'), add('10.0.0.3')]
    expect(closed(sockets)).toEqual([false, true, false])
  })

  it('counts an answered connection as idle from its answer on', () => {
    const { add, serve } = setUp(2)
    const first = add('10.0.0.1')
    const response = serve(first)
    const second = add('10.0.0.2')
    response.emit('close')
    add('10.0.0.3')
    expect(closed([first, second])).toEqual([false, true])
    add('10.0.0.4')
    expect(first.isClosed).toBe(true)
  })

  it('takes from a client that holds more than a quarter what it wants more', () => {
    const { add } = setUp(8)
    const loadBalancer = add('10.0.0.1')
    const greedy = Array.from({ length: 7 }, () => add('10.0.0.66'))
    const more = Array.from({ length: 20 }, () => add('10.0.0.66'))
    expect(loadBalancer.isClosed).toBe(false)
    expect(closed(greedy)).toEqual(greedy.map(() => true))
    expect(more.filter(({ isClosed }) => !isClosed)).toHaveLength(7)
  })

  it.each([
    ['close-oldest', [true, false, false]],
    ['refuse-new', [false, false, true]],
  ] as const)('with requests on all connections: %s', (whenBusy, expected) => {
    const { limit, add, serve } = setUp(2, whenBusy)
    const sockets = [add('10.0.0.1'), add('10.0.0.2')]
    for (const socket of sockets) serve(socket)
    sockets.push(add('10.0.0.3'))
    expect(closed(sockets)).toEqual(expected)
    expect(limit.size).toBe(2)
  })
})

describe('connections that end', () => {
  it('make room', () => {
    const { limit, add } = setUp(2)
    const first = add()
    first.destroy()
    const rest = [add(), add()]
    expect(closed(rest)).toEqual([false, false])
    expect(limit.size).toBe(2)
  })

  it('are forgotten while they are served', () => {
    const { limit, add, serve } = setUp(2)
    const socket = add()
    const response = serve(socket)
    socket.destroy()
    response.emit('close')
    expect(limit.size).toBe(0)
    expect(closed([add(), add()])).toEqual([false, false])
  })
})
