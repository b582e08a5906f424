// Checks that the client reports the addresses that it dials, before the connection succeeds, and forgets unused ones.

import { afterEach, describe, expect, it } from 'vitest'
import { DialedAddresses } from '../../src/kube/dialed-addresses.ts'
import { FakeClock } from '../support/fake-clock.ts'
import { clientTo, connectionTo, json, ScriptServer } from './script-server.ts'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup()
})

function openClient(url: string, dialed: DialedAddresses) {
  const client = clientTo(connectionTo(url), undefined, { dialed })
  cleanups.push(() => client.close())
  return client
}

async function serve(): Promise<ScriptServer> {
  const server = await new ScriptServer(json({})).start()
  cleanups.push(() => server.stop())
  return server
}

describe('DialedAddresses', () => {
  it('has the address of each connection, each once', async () => {
    const server = await serve()
    const dialed = new DialedAddresses(new FakeClock())
    const lists: string[] = []
    dialed.subscribe((list) => lists.push(list.map(({ ip, port }) => `${ip} ${port}`).join()))
    await openClient(`http://127.0.0.1:${server.port}`, dialed).request({ path: '/' })
    await openClient(`http://127.0.0.1:${server.port}`, dialed).request({ path: '/' })
    expect(lists).toEqual(['', `127.0.0.1 ${server.port}`])
  })

  it('has addresses that refuse the connection, since rules may be the reason', async () => {
    const dialed = new DialedAddresses(new FakeClock())
    await expect(openClient('http://127.0.0.1:1', dialed).request({ path: '/' })).rejects.toThrow()
    let list: readonly object[] = []
    dialed.subscribe((given) => {
      list = given
    })
    expect(list).toEqual([{ ip: '127.0.0.1', port: 1 }])
  })

  it('forgets an address an hour after its last connection, when another one is dialled', async () => {
    const [before, after] = [await serve(), await serve()]
    const clock = new FakeClock()
    const dialed = new DialedAddresses(clock)
    let ports: readonly number[] = []
    dialed.subscribe((given) => {
      ports = given.map(({ port }) => port)
    })
    const first = openClient(`http://127.0.0.1:${before.port}`, dialed)
    await first.request({ path: '/' })
    await clock.advance(3_600_000)
    await openClient(`http://127.0.0.1:${after.port}`, dialed).request({ path: '/' })
    expect(ports).toEqual([before.port, after.port])
    first.close()
    await new Promise((resolve) => setTimeout(resolve, 20))
    await clock.advance(3_600_000)
    await openClient(`http://127.0.0.1:${after.port}`, dialed).request({ path: '/' })
    expect(ports).toEqual([after.port])
  })
})
