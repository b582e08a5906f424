// The status of a Node that `sluice up` registers, since no kubelet does. Pods are only records here, so nothing is ever used up.

import { availableParallelism, totalmem } from 'node:os'

export function nodeStatus(addresses: readonly string[]) {
  // kubectl describe divides by these: without them it prints -9223372036854775808 %.
  const capacity = { cpu: String(availableParallelism()), memory: `${Math.floor(totalmem() / 1024)}Ki`, pods: '110' }
  return {
    addresses: addresses.map((address) => ({ type: 'InternalIP', address })),
    conditions: [{ type: 'Ready', status: 'True' }],
    capacity,
    allocatable: capacity,
  }
}
