// Plays every scenario of the corpus through our relays and the chains that redirect to them, with real packets.

import { afterAll } from 'vitest'
import { runCorpus } from '../lab/corpus.ts'
import type { Deviation } from '../lab/driver.ts'
import { EngineDriver } from '../lab/engine-driver.ts'
import { privateLock } from './iptables-holdings.ts'
import { holdings } from './userspace-holdings.ts'

privateLock()

const deviations: readonly Deviation[] = [
  {
    reason: 'Node has no SCTP sockets, so nothing can relay: clients are refused, and an Event reports it',
    scenarios: ['S2/F15', 'sctp/J13?'],
    instead: { outcome: 'reject', snat: undefined },
  },
  {
    reason: 'the relay makes a connection of its own: endpoints see this node, never the client',
    scenarios: ['*/*'],
    snat: true,
  },
]

const drivers: EngineDriver[] = []
afterAll(() => {
  for (const driver of drivers) driver.close()
})

const makeDriver = (): EngineDriver => {
  const driver = new EngineDriver({ holdings, keepBase: true })
  drivers.push(driver)
  const start = driver.start.bind(driver)
  driver.start = async (given) => {
    // The lab sends from ports below these; listeners and relayed connections must not use those.
    await given.node.exec('sysctl', ['-w', 'net.ipv4.ip_local_port_range=61000 65535'])
    await start(given)
  }
  return driver
}

runCorpus(makeDriver, { mode: 'userspace', deviations, only: (process.env.ONLY ?? '*').split(',') })
