// The first transaction of a cold start, with real connections: the API server's service and cluster DNS serve before all others.

import { createServer, type Server, Socket } from 'node:net'
import { afterAll, beforeAll, expect, it } from 'vitest'
import type { Backend, Held, Target } from '../../src/backend/backend.ts'
import { nftables } from '../../src/backend/nftables/backend.ts'
import { type EnteredNamespace, enterNamespace } from '../lab/entered-namespace.ts'
import { expandObject } from '../scenarios/expand.ts'
import type { Manifest } from '../scenarios/format.ts'
import { InProcessProxy, scenario } from './in-process-proxy.ts'

const addresses = {
  'default/kubernetes': '172.30.0.1',
  'kube-system/kube-dns': '172.30.0.10',
  'ns1/web': '172.30.0.41',
}
const pod = '10.180.0.1'

let namespace: EnteredNamespace
let server: Server

beforeAll(async () => {
  namespace = enterNamespace()
  namespace.exec('ip', ['addr', 'add', `${pod}/32`, 'dev', 'lo'])
  namespace.exec('ip', ['link', 'add', 'out', 'type', 'veth', 'peer', 'name', 'away'])
  for (const name of ['out', 'away']) namespace.exec('ip', ['link', 'set', name, 'up'])
  namespace.exec('ip', ['addr', 'add', '192.168.0.2/24', 'dev', 'out'])
  namespace.exec('ip', ['route', 'add', 'default', 'dev', 'out'])
  server = createServer((socket) => socket.on('error', () => undefined).end('hello'))
  await new Promise<void>((resolve) => server.listen(8080, pod, resolve))
})

afterAll(() => {
  server.close()
  namespace.leave()
})

const objects = (): readonly Manifest[] =>
  Object.entries(addresses).flatMap(([name, clusterIP], i) => [
    expandObject({ service: name, clusterIP, ports: ['p 53/tcp'] }, 2 * i, 4),
    expandObject({ slice: name, ports: ['p 8080/tcp'], endpoints: [`${pod} local`] }, 2 * i + 1, 4),
  ])

function connects(ip: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = new Socket()
    const finish = (answer: boolean) => {
      clearTimeout(timer)
      socket.destroy()
      resolve(answer)
    }
    const timer = setTimeout(() => finish(false), 700)
    socket.once('error', () => finish(false))
    socket.connect(53, ip, () => finish(true))
  })
}

it('serves default/kubernetes and cluster DNS after the first transaction, before any other service', async () => {
  const served: boolean[][] = []
  const real = nftables() as unknown as Backend<Held>
  const backend: Backend<Held> = {
    ...real,
    async open(context) {
      const target = await real.open(context)
      const apply: Target<Held>['apply'] = async (changes, signal, wanted) => {
        const applied = await target.apply(changes, signal, wanted)
        served.push(await Promise.all(Object.values(addresses).map(connects)))
        return applied
      }
      return {
        observe: (signal) => target.observe(signal),
        apply,
        drifted: () => target.drifted(),
        close: () => target.close(),
      }
    },
  }
  const proxy = await InProcessProxy.start(scenario('S11').node.nftables, { families: [4], backend })
  proxy.put(...objects())
  proxy.synced()
  await proxy.settled()
  await proxy.stop()
  expect(served[0]).toEqual([true, true, false])
  expect(served.at(-1)).toEqual([true, true, true])
})
