import { expect, it } from 'vitest'
import type { Clock } from '../../../src/lib/time.ts'
import { type InterfaceAddress, pollAddresses } from '../../../src/sys/netlink/interface-addresses.ts'

it('without netlink, addresses are compared from time to time, and only changes are reported', () => {
  const due: (() => void)[] = []
  const clock: Clock = {
    now: () => 0,
    monotonic: () => 0,
    after(ms, run) {
      expect(ms).toBe(5000)
      due.push(run)
      return {
        cancel() {
          due.splice(due.indexOf(run), 1)
        },
      }
    },
  }
  let addresses: InterfaceAddress[] = []
  let changes = 0
  const poll = pollAddresses(
    () => changes++,
    5000,
    clock,
    () => addresses,
  )
  const tick = () => due.shift()?.()
  tick()
  expect(changes).toBe(0)
  addresses = [{ interface: 'eth0', ip: '192.0.2.1', family: 4, bits: 24, scope: 'global' }]
  tick()
  tick()
  expect(changes).toBe(1)
  poll.close()
  expect(due).toEqual([])
})
