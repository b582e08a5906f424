// The ways in which Windows stops the real bundle: Ctrl-Break, a closed console, and the service manager, by deploy/windows/sluice-service.c.

import { existsSync, mkdirSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { windowsNodeBinary } from '../../packaging/inputs.ts'
import { expandObject } from '../scenarios/expand.ts'
import { until } from '../support/until.ts'
import { createWindowsNode, makeKubeconfig, pathOf, toWindowsPath, type WindowsNode } from './windows-node.ts'
import { whyNotWine } from './wine.ts'

const pod = '10.180.0.1'
const clusterIp = '172.30.0.41'
const serviceSource = join(import.meta.dirname, '..', '..', 'deploy', 'windows', 'sluice-service.c')
const eventSource = join(import.meta.dirname, 'console-event.c')

describe.skipIf(whyNotWine() !== undefined)('a stop on Windows', () => {
  let node: WindowsNode
  /** A path on the drive C:, as Linux sees it. */
  const onDrive = (...parts: readonly string[]) => join(node.prefix.path, 'drive_c', ...parts)

  const ask = async () => {
    const flow = {
      at: 'outside',
      from: '203.0.113.2',
      sourcePort: 0,
      to: clusterIp,
      port: 80,
      protocol: 'tcp',
    } as const
    const reply = await node.lab.probe(flow, 5000)
    if (reply.kind === 'reached') return reply.endpoint
    return reply.kind === 'rejected' ? reply.code : reply.kind
  }
  const runProgram = (...command: readonly string[]) => node.startProgram(command).ended()

  beforeAll(async () => {
    node = await createWindowsNode([pod])
    await node.lab.serve([{ ip: pod, port: 8080, protocol: 'tcp', at: 'pod', sink: '' }])
    node.api.put(
      expandObject({ service: 'ns1/web', clusterIP: clusterIp, ports: ['http 80/tcp'] }, 1, 4),
      expandObject({ slice: 'ns1/web', ports: ['http 8080/tcp'], endpoints: [`${pod} local`] }, 2, 4),
    )
  })
  afterAll(async () => {
    await node?.close()
    await node?.lab.close()
  })

  it.each([
    ['Ctrl-Break', 1],
    ['a closed console', 2],
  ])('%s: ends with exit code 0, forgets the pipe and leaves the addresses', async (_, event) => {
    const proxy = node.startProxy()
    await node.settle()
    expect(await ask()).toBe(`${pod}:8080`)
    const pipe = onDrive('ProgramData', 'sluice', 'node-a.pipe')
    expect(existsSync(pipe)).toBe(true)
    expect((await runProgram(node.prefix.compile(eventSource), 'node.exe', String(event))).stdout.trim()).toBe('1')
    expect((await proxy.ended()).code).toBe(0)
    expect(await ask()).toBe('ECONNREFUSED')
    expect(await node.serviceAddresses()).toEqual([clusterIp])
    // A process that Wine ends without asking it also has exit code 0, but leaves this file.
    expect(existsSync(pipe)).toBe(false)
  })

  describe('as a service', () => {
    const sc = async (...args: readonly string[]) => (await runProgram('sc.exe', ...args)).stdout
    const reaches = (state: string, name = 'sluice') =>
      until(`the service is ${state}`, async () => {
        const status = await sc('query', name)
        return status.includes(state) && status
      })
    /** Wine gives services another ProgramData than Windows does. */
    const pipe = () => onDrive('users', 'Public', 'sluice', 'node-a.pipe')
    const logFile = 'C:\\sluice logs\\proxy.log'
    const readLog = () => readFileSync(onDrive('sluice logs', 'proxy.log'), 'utf8')
    /** The line that docs/windows.md gives to sc.exe. */
    const create = (name: string, ...args: readonly string[]) => {
      const program = `"${toWindowsPath(windowsNodeBinary())}" ${pathOf('kube-proxy')}`
      const command = `${node.prefix.compile(serviceSource)} "${logFile}" ${program} ${args.join(' ')}`
      return sc('create', name, 'binPath=', command, 'start=', 'demand')
    }

    beforeAll(async () => {
      // The service manager of Wine ends, and forgets exit codes, with the last program that is not a service.
      node.startProgram([windowsNodeBinary(), '-e', 'setInterval(() => {}, 1e6)'])
      const folder = onDrive('sluice service')
      mkdirSync(folder)
      mkdirSync(onDrive('sluice logs'))
      writeFileSync(join(folder, 'token'), 'secret-of-the-service')
      const kubeconfig = makeKubeconfig(node.api.url, 'C:\\sluice service\\token')
      writeFileSync(join(folder, 'kubeconfig'), JSON.stringify(kubeconfig))
      await create('sluice', '"--kubeconfig=C:\\sluice service\\kubeconfig"', '--hostname-override=node-a', '-v=2')
    })

    it('serves, writes its log to a file, and stops in order when the service manager says so', async () => {
      await sc('start', 'sluice')
      await node.settle()
      await reaches('RUNNING')
      expect(await ask()).toBe(`${pod}:8080`)
      expect(node.api.authorization).toBe('Bearer secret-of-the-service')
      expect(readLog()).toContain('mode="userspace"')
      expect(existsSync(pipe())).toBe(true)
      await sc('stop', 'sluice')
      expect(await reaches('STOPPED')).toMatch(/WIN32_EXIT_CODE\s+: 0 /)
      expect(existsSync(pipe())).toBe(false)
      expect(await ask()).toBe('ECONNREFUSED')
      expect(await node.serviceAddresses()).toEqual([clusterIp])
    })

    it('starts again, appends to the log, and takes its addresses over', async () => {
      const [before, calls] = [readLog(), node.netsh.calls.length]
      await sc('start', 'sluice')
      await node.settle()
      expect(await ask()).toBe(`${pod}:8080`)
      expect(node.netsh.calls.slice(calls)).toEqual([])
      expect(readLog().startsWith(before)).toBe(true)
    })

    // Windows also says then that the service has stopped; Wine does not.
    it('ends the proxy if the service itself is killed', async () => {
      await runProgram('taskkill.exe', '/F', '/IM', 'sluice-service.exe')
      await until('the proxy is gone', async () => (await ask()) === 'ECONNREFUSED')
    })

    it('stops with the exit code of a proxy that ends by itself, and has the reason in the log', async () => {
      truncateSync(onDrive('sluice logs', 'proxy.log'), 11 << 20)
      await create('refused', '--proxy-mode=nftables')
      await sc('start', 'refused')
      expect(await reaches('STOPPED', 'refused')).toMatch(/WIN32_EXIT_CODE\s+: 1066 .*\s+SERVICE_EXIT_CODE\s+: 1 /)
      // The log was longer than 10 MB, so it is a new file.
      expect(readLog()).toBe('Error: --proxy-mode: given "nftables", must be userspace: Windows has no other mode\n')
      expect(statSync(onDrive('sluice logs', 'proxy.log.old')).size).toBe(11 << 20)
    })
  })
})
