import type { AddressInfo } from 'node:net'
import { connect, createServer } from 'node:net'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Held } from '../../../src/backend/backend.ts'
import { loopback, loopbackAddress } from '../../../src/backend/loopback/backend.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { systemClock } from '../../../src/lib/time.ts'
import type { NodeView, ServicePort } from '../../../src/model/types.ts'

const node = {} as NodeView
const settings = { userspace: { portRange: undefined, udpTimeoutMs: 1000, bindAddress: '' } }

const port = (endpoints: readonly number[], frontends: ServicePort['frontends']): ServicePort => ({
  id: 'a/b/tcp',
  service: 'a/b',
  name: 'a/b',
  portName: '',
  family: 4,
  protocol: 'tcp',
  frontends,
  internal: endpoints.length > 0 ? 'cluster' : 'reject',
  external: 'cluster',
  cluster: endpoints.map((number) => ({ ip: '127.0.0.1', port: number, local: true })),
  local: [],
  serving: [],
  affinitySeconds: 0,
  nodeAllowed: false,
  health: undefined,
})

describe('where services answer on loopback', () => {
  it('keeps the last three numbers of a cluster IP, and moves ports that only root may bind', () => {
    expect(loopbackAddress({ kind: 'cluster-ip', ip: '10.96.0.80', port: 6379, allow: [] }, 1024)).toEqual({
      ip: '127.96.0.80',
      port: 6379,
    })
    expect(loopbackAddress({ kind: 'cluster-ip', ip: '10.96.0.80', port: 80, allow: [] }, 1024)).toEqual({
      ip: '127.96.0.80',
      port: 10_080,
    })
    expect(loopbackAddress({ kind: 'cluster-ip', ip: '10.96.0.80', port: 80, allow: [] }, 0)).toEqual({
      ip: '127.96.0.80',
      port: 80,
    })
    expect(loopbackAddress({ kind: 'node-port', ip: '', port: 30_080, allow: [] }, 1024)).toEqual({
      ip: '127.0.0.1',
      port: 30_080,
    })
    expect(loopbackAddress({ kind: 'external-ip', ip: '1.2.3.4', port: 80, allow: [] }, 1024)).toBeUndefined()
    expect(loopbackAddress({ kind: 'cluster-ip', ip: 'fd00::1', port: 80, allow: [] }, 1024)).toBeUndefined()
  })
})

describe('the loopback data plane', () => {
  it('relays to endpoints, follows their changes, and lets go of its sockets', async () => {
    const one = await answering('one')
    const two = await answering('two')
    const backend = loopback(settings)
    const target = await backend.open({ family: 4, node, log: silentLogger, clock: systemClock, onDrift: () => {} })
    onTestFinished(() => target.close())
    const frontends = [{ kind: 'cluster-ip' as const, ip: '10.96.77.1', port: 26_379, allow: [] }]
    const apply = async (endpoints: readonly number[], before: readonly Held[] = []) => {
      const put = backend.plan(port(endpoints, frontends), node)
      const drop = before.filter(({ id }) => !put.some((entry) => entry.id === id))
      const wanted = { size: 0, entry: () => undefined, entries: () => [] }
      expect(await target.apply({ put, drop }, wanted, new AbortController().signal)).toEqual({ refused: [] })
      return put
    }
    const first = await apply([one])
    expect(await ask('127.96.77.1', 26_379)).toBe('one')
    await apply([two])
    expect(await ask('127.96.77.1', 26_379)).toBe('two')
    expect((await target.observe(new AbortController().signal)).map(({ id }) => id)).toEqual([
      'listener tcp 127.96.77.1:26379',
    ])
    await apply([], first)
    expect(await ask('127.96.77.1', 26_379)).toBe('ECONNREFUSED')
  })

  it('reports an address that is taken, and goes on', async () => {
    const taken = await answering('somebody else')
    const backend = loopback(settings)
    const target = await backend.open({ family: 4, node, log: silentLogger, clock: systemClock, onDrift: () => {} })
    onTestFinished(() => target.close())
    const put = backend.plan(port([1], [{ kind: 'node-port', ip: '', port: taken, allow: [] }]), node)
    const { refused } = await target.apply(
      { put, drop: [] },
      { size: 0, entry: () => undefined, entries: () => [] },
      new AbortController().signal,
    )
    expect(refused.map(({ id }) => id)).toEqual([`listener tcp 127.0.0.1:${taken}`])
  })
})

async function answering(text: string): Promise<number> {
  const server = createServer((socket) => socket.end(text))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => void server.close())
  return (server.address() as AddressInfo).port
}

function ask(host: string, number: number): Promise<string> {
  return new Promise((resolve) => {
    let text = ''
    const socket = connect(number, host)
    socket.on('data', (chunk) => {
      text += chunk
    })
    socket.on('end', () => resolve(text))
    socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? ''))
  })
}
