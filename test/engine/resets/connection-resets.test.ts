// Which connections are ended when endpoints are gone: those made by a frontend of the service, and no others.

import { describe, expect, it } from 'vitest'
import { type ClientFlow, ConnectionResets } from '../../../src/engine/resets/connection-resets.ts'
import type { GoneEndpoint } from '../../../src/engine/resets/gone-endpoints.ts'
import { servicePort } from '../../support/builders.ts'

const gone = (ip: string): GoneEndpoint => ({ service: 'ns1/svc1', family: 4, protocol: 'tcp', ip, port: 8080 })
const flow = (given: Partial<ClientFlow> = {}): ClientFlow => ({
  protocol: 6,
  source: '10.0.0.9',
  sourcePort: 40_000,
  destination: '172.30.0.41',
  destinationPort: 80,
  replySource: '10.1.0.1',
  replySourcePort: 8080,
  ...given,
})

async function end(flows: readonly ClientFlow[], endpoints: readonly GoneEndpoint[] = [gone('10.1.0.1')]) {
  const steps: string[] = []
  let answered: readonly ClientFlow[] = []
  let local: readonly ClientFlow[] = []
  let looks = 0
  const frontend = { allow: [] }
  const resets = new ConnectionResets<ClientFlow>({
    table: {
      list: async (filter, visit) => {
        looks++
        visit(flows.filter(({ protocol }) => protocol === filter.protocol))
        return { interrupted: false }
      },
      remove: async (some) => {
        steps.push('remove')
        return some.length
      },
    },
    answer: async (_, __, some) => {
      steps.push('answer')
      answered = some
    },
    endSockets: async (_, some) => {
      steps.push('end sockets')
      local = some
    },
    portsOf: () => [
      servicePort({
        protocol: 'tcp',
        frontends: [
          { kind: 'cluster-ip', ip: '172.30.0.41', port: 80, ...frontend },
          { kind: 'node-port', ip: '', port: 30080, ...frontend },
        ],
      }),
    ],
    nodeAddresses: () => ['192.168.0.2'],
    onEnded: () => undefined,
  })
  await resets.end(endpoints, new AbortController().signal)
  return { answered, local, steps, looks }
}

describe('connections that are ended', () => {
  it('were made by the cluster IP or by a node port of this node; their packets are answered before their entries go', async () => {
    const own = [flow(), flow({ destination: '192.168.0.2', destinationPort: 30080 })]
    expect(await end(own)).toMatchObject({ answered: own, steps: ['answer', 'remove'] })
  })

  it('end their sockets if the clients are on the node itself, while the entries are there', async () => {
    const own = [flow({ source: '192.168.0.2' }), flow({ source: '127.0.0.1' })]
    const ended = await end([flow(), ...own])
    expect(ended).toMatchObject({ local: own, steps: ['answer', 'end sockets', 'remove'] })
  })

  it.each<[string, Partial<ClientFlow>]>([
    ['to another endpoint', { replySource: '10.1.0.2' }],
    ['to another port of the pod', { replySourcePort: 9090 }],
    ['to the pod itself', { destination: '10.1.0.1', destinationPort: 8080 }],
    ['by another service', { destination: '172.30.0.99' }],
    ['by another port of the service', { destinationPort: 81 }],
    ['by the node port of another node', { destination: '192.168.0.3', destinationPort: 30080 }],
    ['of another protocol', { protocol: 17 }],
  ])('are not those %s', async (_, given) => {
    expect((await end([flow(given)])).steps).toEqual([])
  })

  it('are looked for once for each endpoint if few went, and once for all if many did', async () => {
    expect((await end([], [gone('10.1.0.1'), gone('10.1.0.2')])).looks).toBe(2)
    const many = Array.from({ length: 500 }, (_, i) => gone(`10.1.${i >> 8}.${i & 255}`))
    expect((await end([], many)).looks).toBe(1)
  })
})
