// Userspace mode over time: killed and restarted, with dead endpoints, with services that are deleted under open connections.

import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { createServer, Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import type { Manifest } from '../scenarios/format.ts'
import { until } from '../support/until.ts'
import { type Flavour, privateLock } from './iptables-holdings.ts'
import { clusterIp, NodeNetwork, nodeIp, podIps } from './node-network.ts'
import { ProxyProcess } from './proxy-process.ts'
import { expand, single, web } from './web-service.ts'
import { recordRestores, refuseRestores } from './wrapped-restore.ts'

privateLock()

const start = (network: NodeNetwork) => ProxyProcess.start(network, web().put, {}, 'userspace')

describe.each<Flavour>(['nft', 'legacy'])('userspace mode over time, %s', (flavour) => {
  let network: NodeNetwork
  const ipt = `iptables-${flavour}`

  beforeAll(async () => {
    network = await NodeNetwork.create()
    await network.useFlavour(flavour)
  })

  afterEach(async () => {
    for (const proxy of network.proxies.splice(0)) if (proxy !== running) await proxy.kill()
  })

  afterAll(async () => {
    await running?.kill()
    await network?.close()
  })

  let running: ProxyProcess | undefined
  /** One process for all tests that need not start or stop it, with the first services. */
  const shared = async (): Promise<ProxyProcess> => {
    running ??= await start(network)
    await running.apply(web())
    await running.settle()
    return running
  }

  /** The ports that rules redirect to. */
  const ports = async (): Promise<readonly number[]> => {
    const saved = await network.run(`${ipt}-save -t nat`)
    return [...new Set([...saved.matchAll(/--to-destination \S+:(\d+)/g)].map((match) => Number(match[1])))]
  }

  it('refuses clients after a kill while no process runs, and serves as soon as a new process listens', async () => {
    let before: readonly number[] = []
    for (let round = 0; round < 4; round++) {
      const proxy = await start(network)
      await proxy.settle()
      for (let i = 0; i < 4; i++) expect(podIps).toContain(await network.ask())
      expect(podIps).toContain(await network.ask(nodeIp, 30_080))
      const now = await ports()
      expect(now).toHaveLength(1)
      expect(now).not.toEqual(before)
      before = now
      await proxy.kill()
      expect(await network.ask()).toBe('ECONNREFUSED')
    }
  })

  it('listens only after the rules of an ended process refuse: its ports may belong to other services now', async () => {
    const first = await start(network)
    await first.settle()
    await first.kill()
    const { env, records, end } = await recordRestores(network, flavour)
    const next = await ProxyProcess.start(network, web().put, env, 'userspace')
    await next.settle()
    expect(records()[0]).toMatch(/^0 listeners, leads to 1( |$)/)
    expect(records().at(-1)).toMatch(/^1 listeners, leads to \d\d+( |$)/)
    expect(podIps).toContain(await network.ask())
    await next.kill()
    end()
  })

  it('recovers from kill -9 in the middle of syncs', async () => {
    for (let round = 0; round < 25; round++) {
      const proxy = await start(network)
      await delay(Math.random() * 200)
      await proxy.kill()
    }
    const proxy = await start(network)
    await proxy.settle()
    for (let i = 0; i < 4; i++) expect(podIps).toContain(await network.ask())
    const saved = await network.run(`${ipt}-save`)
    const hooks = saved.split('\n').filter((line) => /^-A (?!KUBE-).*-j KUBE-(?:PORTALS|NODEPORT)-/.test(line))
    expect(hooks).toHaveLength(9)
    expect(new Set(hooks).size).toBe(9)
    expect(await ports()).toHaveLength(1)
  })

  it('names and isolates a service whose rules are refused, and writes all others', async () => {
    const { env, end } = await refuseRestores(network, flavour, 'bad/one')
    const begin = (...more: readonly Manifest[]) =>
      ProxyProcess.start(network, [...web().put, ...more], env, 'userspace')
    const bad = single('bad/one', '172.30.9.9')
    const proxy = await begin()
    await proxy.settle()
    await proxy.apply({ drop: [], put: [...bad, ...single('good/one', '172.30.9.10')] })
    await proxy.settle()
    expect(await network.ask('172.30.9.10')).toBe(podIps[0])
    expect(podIps).toContain(await network.ask())
    expect(proxy.log).toMatch(/A service cannot be programmed; other services are not affected.*bad\/one/)
    expect(proxy.log).not.toMatch(/cannot be programmed.*(?:good\/one|ns1\/web)/)
    expect(await network.ask('172.30.9.9', 80, 300)).toBe('timeout')
    await proxy.kill()
    // A new process writes everything, with the refused service among it.
    const next = await begin(...bad)
    await next.settle()
    expect(podIps).toContain(await network.ask())
    expect(next.log).toMatch(/A service cannot be programmed; other services are not affected.*bad\/one/)
    end()
    await until('the service is tried again', async () => (await network.ask('172.30.9.9', 80, 600)) === podIps[0])
  })

  it('answers UDP while other services change', async () => {
    const udp = (service: string, ip: string, endpoint: string) => [
      expand({ service, clusterIP: ip, ports: ['dns 53/udp'] }, 700),
      expand({ slice: service, ports: ['dns 5353/udp'], endpoints: [`${endpoint} local`] }, 701),
    ]
    // On a busy machine the flow must not count as idle before the answer comes.
    const env = { SLUICE_TEST_UDP_IDLE_MS: '60000' }
    const proxy = await ProxyProcess.start(network, udp('ns1/dns', '172.30.0.53', podIps[0]), env, 'userspace')
    await proxy.settle()
    const pod = createSocket('udp4').bind({ fd: network.pod(0).openSocket('udp', podIps[0], 5353) })
    const client = createSocket('udp4').bind({ fd: network.client.openSocket('udp', '192.168.0.100', 0) })
    const asked = once(pod, 'message')
    client.send('question', 53, '172.30.0.53')
    const [, from] = await asked
    await proxy.apply({ drop: [], put: udp('ns1/other', '172.30.0.54', podIps[1]) })
    await proxy.settle()
    const answered = Promise.race([once(client, 'message'), delay(3000).then(() => ['', { address: 'nobody' }])])
    pod.send('answer', from.port, from.address)
    const [answer, sender] = await answered
    pod.close()
    client.close()
    expect([String(answer), sender.address, sender.port]).toEqual(['answer', '172.30.0.53', 53])
  })

  it('hides dead endpoints from clients', async () => {
    const proxy = await shared()
    // No host has the first two addresses; nothing comes back from there, not even an error.
    await network.run(`ip route add blackhole 10.180.0.8; ${ipt} -I OUTPUT -d 10.180.0.9 -j DROP`)
    await proxy.apply(web(['10.180.0.8', '10.180.0.9', podIps[0]]))
    await proxy.settle()
    const answers = await Promise.all(Array.from({ length: 12 }, () => network.ask(clusterIp, 80, 10_000)))
    await network.run(`${ipt} -D OUTPUT -d 10.180.0.9 -j DROP; ip route del blackhole 10.180.0.8`)
    expect(new Set(answers)).toEqual(new Set([podIps[0]]))
  })

  it('cuts no connection when endpoints change, nor when the service is deleted', async () => {
    const proxy = await shared()
    const { answer, socket } = await network.dial(clusterIp, 80)
    const again = async () => {
      socket.write('again\n')
      return String((await once(socket, 'data'))[0]).trim()
    }
    await proxy.apply(web([podIps[0] === answer ? podIps[1] : podIps[0]]))
    await proxy.settle()
    expect(await again()).toBe(answer)
    await proxy.apply({ drop: web().put, put: [] })
    await proxy.settle()
    expect(await network.ask(clusterIp, 80, 500)).toBe('timeout')
    expect(await again()).toBe(answer)
    socket.destroy()
  })

  it('refuses clients that connect to the port of a listener directly', async () => {
    await shared()
    const [port] = (await ports()) as [number]
    expect(await network.ask(nodeIp, port)).toBe('ECONNREFUSED')
    expect(podIps).toContain(await network.ask())
  })

  it('does not affect a program that has the port of a listener on loopback', async () => {
    await shared()
    const [port] = await ports()
    const server = createServer((socket) => socket.end('mine')).listen({
      fd: network.node.openSocket('tcp', '127.0.0.1', port as number),
    })
    await once(server, 'listening')
    const client = new Socket({ fd: network.node.openSocket('tcp', '127.0.0.1', 0) })
    const heard = once(client, 'data')
    client.connect({ host: '127.0.0.1', port: port as number })
    expect(String((await heard)[0])).toBe('mine')
    client.destroy()
    server.close()
  })

  it('works behind a firewall that denies by default', async () => {
    await shared()
    await network.run(`${ipt} -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT; ${ipt} -A INPUT -j DROP`)
    const answer = await network.ask(nodeIp, 30_080)
    await network.run(`${ipt} -D INPUT -j DROP; ${ipt} -D INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT`)
    expect(podIps).toContain(answer)
  })

  it('serves node ports on localhost', async () => {
    await shared()
    const line = await network.run(`bash -c 'exec 3<>/dev/tcp/127.0.0.1/30080; echo hello >&3; head -1 <&3'`)
    expect(podIps).toContain(line.trim())
  })

  it('does not change rules of others, and does not take them for drift', async () => {
    const proxy = await shared()
    const reported = proxy.log.match(/changed our rules/g)?.length
    for (let i = 1; i <= 6; i++) {
      await network.run(
        `${ipt} -w 5 -t nat -A PREROUTING -d 10.7.0.${i} -j ACCEPT && ${ipt} -w 5 -I INPUT -s 10.7.0.${i} -j DROP`,
      )
      await proxy.apply({ drop: [], put: single(`other/n${i}`, `172.30.8.${i}`) })
      await delay(100)
    }
    await proxy.settle()
    // Long enough for a check.
    await delay(600)
    const saved = await network.run(`${ipt}-save`)
    for (let i = 1; i <= 6; i++) {
      expect(saved).toContain(`-A PREROUTING -d 10.7.0.${i}/32 -j ACCEPT`)
      expect(saved).toContain(`-A INPUT -s 10.7.0.${i}/32 -j DROP`)
      expect(await network.ask(`172.30.8.${i}`)).toBe(podIps[0])
    }
    expect(proxy.log.match(/changed our rules/g)?.length).toBe(reported)
  })

  it.each([
    ['flushed', `${ipt} -t nat -F KUBE-PORTALS-CONTAINER`],
    ['unhooked', `${ipt} -t nat -D PREROUTING 1`],
    ['all gone', `${ipt} -t nat -F && ${ipt} -t nat -X`],
  ])('repairs its chains: %s', async (_, command) => {
    const proxy = await shared()
    const countReports = () => proxy.log.match(/Another program changed our rules/g)?.length ?? 0
    const before = countReports()
    await network.run(command)
    expect(podIps).not.toContain(await network.ask(clusterIp, 80, 200))
    await until('repaired', async () => (podIps as readonly string[]).includes(await network.ask(clusterIp, 80, 500)))
    expect(countReports()).toBe(before + 1)
  })

  it('leaves nothing behind after cleanup, and keeps everything that is not its own', async () => {
    const save = async () => (await network.run(`${ipt}-save`)).replace(/^#.*\n/gm, '').replace(/\[\d+:\d+\]/g, '')
    await running?.kill()
    running = undefined
    await network.run(
      `${ipt} -t nat -N CNI-X; ${ipt} -t nat -A PREROUTING -d 10.9.0.1 -j CNI-X; ${ipt} -A INPUT -s 10.9.0.1 -j DROP`,
    )
    const proxy = await start(network)
    await proxy.settle()
    expect(await save()).toMatch(/-j KUBE-PORTALS-FILTER/)
    await proxy.ask({ ask: 'stop', keepBase: false })
    const left = await save()
    expect(left.replace(/^:KUBE-KUBELET-CANARY .*\n/m, '')).not.toContain('KUBE-')
    for (const line of [
      '-A PREROUTING -d 10.9.0.1/32 -j CNI-X',
      '-A INPUT -s 10.9.0.1/32 -j DROP',
      ':KUBE-KUBELET-CANARY ',
    ]) {
      expect(left).toContain(line)
    }
  })
})
