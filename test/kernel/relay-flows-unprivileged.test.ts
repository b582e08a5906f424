// Flows of a proxy that runs without rights and without rules: its sockets are all that it needs to tell who talks to whom.

import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { chmodSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { AdminClient } from '../../src/http/admin-client.ts'
import { Namespace } from '../lab/namespace.ts'
import { until } from '../support/until.ts'
import { addressOf, allFlows, followFlows } from './followed-flows.ts'
import { machine, publish, start, undo } from './up-process.ts'

/** The cluster IP 10.96.0.80:80 of the example, as every user may bind it. */
const webAddress = { host: '127.96.0.80', port: 10_080 } as const
const web = `${webAddress.host}:${webAddress.port}`
const dns = { host: '127.96.0.10', port: 10_053 } as const

it('are listed and followed, over TCP and UDP', async () => {
  const space = await machine()
  const home = mkdtempSync(join(tmpdir(), 'sluice-home-'))
  chmodSync(home, 0o777)
  undo.push(() => rmSync(home, { recursive: true, force: true }))
  const drop = ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', '--no-new-privs']
  const open = await publish()
  const argv = ['up', '--mode', 'userspace', '--manifests', join(open.examples, 'standalone'), '--node', 'alone']
  const env = { HOME: home, XDG_RUNTIME_DIR: home, TMPDIR: home }
  const run = start(argv, ['ip', 'netns', 'exec', space, ...drop], env, open.program)
  await run.until('Ctrl-C stops')
  const directory = readdirSync(home).find((name) => name.startsWith('sluice-up')) as string
  const client = new AdminClient(join(home, directory, 'alone.sock'))
  const namespace = new Namespace(space)
  undo.push(() => namespace.close())

  const socket = await connect(namespace)
  const listed = await until('the connection is listed', async () =>
    (await client.flows(allFlows)).flows.find(({ from }) => from === addressOf(socket)),
  )
  expect(listed).toMatchObject({
    ...{ verdict: 'open', to: web, service: 'default/web:http', protocol: 'tcp', fromPod: '' },
    endpoint: expect.stringMatching(/^10\.9\.0\.1[12]:8080$/),
  })
  expect((await client.flows({ ...allFlows, from: '10.0.0.0/8' })).flows).toEqual([])
  expect((await client.flows({ ...allFlows, service: 'default/dns' })).flows).toEqual([])

  const watch = await followFlows(client)
  undo.push(() => watch.end())
  const request = `GET / HTTP/1.0\r\n\r\n`
  let answered = 0
  socket.on('data', (part) => {
    answered += part.length
  })
  socket.end(request)
  await once(socket, 'close')
  const closed = await watch.find('closed', web)
  expect(closed).toMatchObject({ id: listed.id, endpoint: listed.endpoint, startedAt: listed.startedAt })
  expect(closed.traffic).toEqual({ bytesIn: request.length, bytesOut: answered, packetsIn: 0, packetsOut: 0 })

  const broken = await connect(namespace)
  const from = addressOf(broken)
  await until('the relay has accepted it', () => watch.flows.some((flow) => flow.from === from))
  broken.resetAndDestroy()
  expect(await watch.find('reset', web)).toMatchObject({ from })

  // No server of the example listens there, and the system says so.
  const sender = createSocket('udp4').bind({ fd: namespace.openSocket('udp', '127.0.0.1', 0) })
  undo.push(() => sender.close())
  sender.send('anyone?', dns.port, dns.host)
  expect(await watch.find('refused', `${dns.host}:${dns.port}`)).toMatchObject({
    ...{ protocol: 'udp', endpoint: '10.9.0.11:5353', endpointPod: 'default/dns-1', service: 'default/dns:dns' },
    traffic: { packetsIn: 1, bytesIn: 7, packetsOut: 0, bytesOut: 0 },
  })
  const remarks = watch.coverages.flatMap((coverage) => coverage.remarks).join(' ')
  expect(remarks).toContain('Clients of a service without endpoints are refused by the system, and are not shown.')
  expect(remarks).not.toMatch(/Some flows are not shown|nf_conntrack/)
})

async function connect(namespace: Namespace): Promise<Socket> {
  const socket = new Socket({ fd: namespace.openSocket('tcp', '127.0.0.1', 0) })
  socket.connect(webAddress)
  await once(socket, 'connect')
  return socket
}
