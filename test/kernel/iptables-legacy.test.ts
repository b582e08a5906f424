// Runs some scenarios of each kind in the legacy flavour with real packets. The rules are the same; the programs and the kernel's tables are not.

import { afterAll } from 'vitest'
import { runCorpus } from '../lab/corpus.ts'
import type { StartOptions } from '../lab/driver.ts'
import { EngineDriver } from '../lab/engine-driver.ts'
import { holdings, privateLock } from './iptables-holdings.ts'

privateLock()

const drivers: EngineDriver[] = []
afterAll(() => {
  for (const driver of drivers) driver.close()
})

const makeDriver = (): EngineDriver => {
  const driver = new EngineDriver({ holdings: holdings('legacy') })
  const start = driver.start.bind(driver)
  // Kubelet makes this chain in the flavour that the node uses.
  driver.start = async (options: StartOptions) => {
    for (const program of ['iptables-legacy', 'ip6tables-legacy']) {
      await options.node.exec(program, ['-w', '-t', 'mangle', '-N', 'KUBE-KUBELET-CANARY'])
    }
    await start(options)
  }
  drivers.push(driver)
  return driver
}

const only = ['S2.v6', 'S5.udp', 'S8a.v6.udp', 'S4a', 'S11', 'affinity', 'detect-bridge']
runCorpus(makeDriver, { mode: 'iptables', only })
