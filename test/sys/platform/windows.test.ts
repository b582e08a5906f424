// The parts of Windows that need no Windows: names of pipes and the files that show them, and which addresses belong to services.

import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { type NetworkInterfaceInfo, tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { findMode } from '../../../src/backend/modes.ts'
import { runCommand } from '../../../src/commands/command-list.ts'
import { linuxDefaults } from '../../../src/config/defaults.ts'
import { resolveOptions } from '../../../src/config/flags/options.ts'
import { findStateFolder, makeNamedPipes } from '../../../src/sys/platform/named-pipes.ts'
import { listMachineAddresses, nameServiceInterface } from '../../../src/sys/platform/service-interface.ts'
import { windows } from '../../../src/sys/platform/windows.ts'
import { memoryTerminal } from '../../commands/run-command.ts'

it('lists pipes that only administrators can create, by files in the folder of Sluice', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-pipes-'))
  onTestFinished(() => rmSync(folder, { recursive: true }))
  const pipes = makeNamedPipes(folder, join)
  const path = pipes.pathOf('node1')
  expect(path).toBe('\\\\.\\pipe\\ProtectedPrefix\\Administrators\\sluice\\node1')
  expect([pipes.list(folder), pipes.exists(path)]).toEqual([[], false])
  // On Linux the name is that of a Unix socket in the working directory.
  const home = process.cwd()
  process.chdir(mkdtempSync(join(folder, 'sockets-')))
  onTestFinished(() => process.chdir(home))
  const server = createServer()
  await pipes.listen(server, path)
  expect([pipes.list(folder), pipes.exists(path)]).toEqual([[path], true])
  await expect(pipes.listen(createServer(), path)).rejects.toThrow(/another proxy listens/)
  await new Promise((resolve) => server.close(resolve))
  pipes.forget(path)
  expect(readdirSync(folder).filter((name) => name.endsWith('.pipe'))).toEqual([])
})

it('keeps its files below ProgramData', () => {
  expect(findStateFolder({ ProgramData: 'D:\\Data' })).toBe('D:\\Data\\sluice')
  expect(findStateFolder({})).toBe('C:\\ProgramData\\sluice')
})

it('does not count the addresses of services as addresses of the machine', () => {
  const address = (text: string) => ({ address: text.split('/')[0], cidr: text }) as NetworkInterfaceInfo
  const interfaces = () => ({
    Ethernet: ['192.0.2.7/24', '192.0.2.8/32'].map(address),
    'vEthernet (HNS Internal NIC)': ['172.20.0.1/20', '10.96.0.1/32', 'fd00::1/64', 'fd00:96::1/128'].map(address),
  })
  const own = listMachineAddresses(nameServiceInterface({}), interfaces).map(({ ip }) => ip)
  expect(own).toEqual(['192.0.2.7', '192.0.2.8', '172.20.0.1', 'fd00::1'])
  expect(nameServiceInterface({ INTERFACE_TO_ADD_SERVICE_IP: 'Ethernet' })).toBe('Ethernet')
})

it('runs programs only from the folder of the system, and stops at the signals of a console', () => {
  expect(windows.findProgram('netsh')).toBe('C:\\Windows\\System32\\netsh.exe')
  expect(windows.programEnvironment().PATH).toBe('C:\\Windows\\System32')
  expect(windows.stopSignals).toEqual(['SIGINT', 'SIGBREAK', 'SIGHUP'])
  expect(windows.tuneConntrack({ max: 1000 })).toEqual([])
  expect(windows.openFileLimit()).toBe(Number.POSITIVE_INFINITY)
})

it('has the userspace mode alone, and says so in one line', () => {
  const platform = { name: 'Windows', modes: ['userspace'], mode: 'userspace' }
  const resolve = (argv: readonly string[], on = platform) => resolveOptions(argv, () => '', {}, on).config.mode
  expect(resolve([])).toBe('userspace')
  expect(resolve(['--proxy-mode=userspace'])).toBe('userspace')
  expect(resolve([], { ...linuxDefaults, modes: [...linuxDefaults.modes] })).toBe('iptables')
  for (const mode of ['nftables', 'iptables', 'ipvs', 'kernelspace']) {
    const message = `--proxy-mode: given "${mode}", must be userspace: Windows has no other mode`
    expect(() => resolve([`--proxy-mode=${mode}`])).toThrow(message)
  }
  expect(() => findMode('nftables', 'Windows')).toThrow('there is no mode "nftables" on Windows; possible: userspace')
})

it.each(['up', 'doctor'])('refuses sluice %s, which looks at the kernel of Linux', async (command) => {
  const terminal = memoryTerminal()
  expect(await runCommand(command, [], terminal, 'Windows')).toBe(1)
  expect(terminal.stderr()).toMatch(/needs Linux; on Windows run sluice proxy/)
})
