// One scenario of each kind through the legacy flavour, with real packets; the rules are the same, the programs and the kernel's tables others.

import { afterAll } from 'vitest'
import { runCorpus } from '../lab/corpus.ts'
import type { Start } from '../lab/driver.ts'
import { EngineDriver } from '../lab/engine-driver.ts'
import { holdings, privateLock } from './iptables-lab.ts'

privateLock()

const drivers: EngineDriver[] = []
afterAll(() => {
  for (const driver of drivers) driver.close()
})

const makeDriver = (): EngineDriver => {
  const driver = new EngineDriver({ holdings: holdings('legacy') })
  const start = driver.start.bind(driver)
  // As kubelet would: its chain tells which flavour the node uses.
  driver.start = async (options: Start) => {
    for (const program of ['iptables-legacy', 'ip6tables-legacy']) {
      await options.node.exec(program, ['-w', '-t', 'mangle', '-N', 'KUBE-KUBELET-CANARY'])
    }
    await start(options)
  }
  drivers.push(driver)
  return driver
}

const only = ['S1', 'S2.v6', 'S3', 'S3.v6', 'S4a', 'S4c', 'S5.udp', 'S8a', 'S10a', 'S11', 'S11.v6.udp']
runCorpus(makeDriver, { mode: 'iptables', only: [...only, 'affinity*', 'detectors*'] })
