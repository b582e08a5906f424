// Which endpoint a relayed client gets: by weight, by turns, at random and by a hash.

import { describe, expect, it } from 'vitest'
import { Balancer } from '../../../src/backend/relay/balancer.ts'
import { planChoice } from '../../../src/backend/relay/balancer-choice.ts'
import { slotOfClient } from '../../../src/model/consistent-hash.ts'
import { tabulate } from '../../../src/model/endpoint-slots.ts'
import { servicePort } from '../../support/builders.ts'

const picks = (balancer: Balancer, count: number, client = '10.0.0.1') =>
  Array.from({ length: count }, () => balancer.pick(client))
const countOf = (answers: readonly (string | undefined)[], wanted: string) =>
  answers.filter((answer) => answer === wanted).length

describe('a balancer', () => {
  it('goes by turns, an endpoint as often as it is listed', () => {
    const balancer = new Balancer(Math.random, () => 0)
    balancer.update(['a', 'a', 'a', 'b'], 0)
    expect([countOf(picks(balancer, 40), 'a'), countOf(picks(balancer, 40), 'b')]).toEqual([30, 10])
  })

  it('chooses at random if it should', () => {
    const values = [0.1, 0.9, 0.6, 0.2]
    let calls = 0
    const balancer = new Balancer(
      () => values[calls++ % values.length] as number,
      () => 0,
    )
    balancer.update(['a', 'b'], 0, { by: 'random' })
    calls = 0
    const chosen = picks(balancer, 4)
    expect(chosen[0]).toBe(chosen[3])
    expect(chosen[1]).toBe(chosen[2])
    expect(chosen[0]).not.toBe(chosen[1])
  })

  it('gives every client the endpoint of its slot, and another one only if that one fails', () => {
    const balancer = new Balancer(Math.random, () => 0)
    const list = ['10.1.0.1:80', '10.1.0.2:80', '10.1.0.3:80']
    balancer.update(list, 0, { by: 'hash', size: 1024 })
    const table = tabulate(list, 1024)
    for (let i = 0; i < 50; i++) {
      const client = `192.168.0.${i}`
      const wanted = table[slotOfClient(client, 1024)] as string
      expect(new Set(picks(balancer, 3, client))).toEqual(new Set([wanted]))
      expect(balancer.pick(client, new Set([wanted]))).not.toBe(wanted)
    }
  })

  it('chooses as the service port wants', () => {
    expect(planChoice(servicePort({}))).toEqual({})
    expect(planChoice(servicePort({ algorithm: 'round-robin' }))).toEqual({})
    expect(planChoice(servicePort({ algorithm: 'random' }))).toEqual({ choice: { by: 'random' } })
    const hashed = servicePort({ algorithm: 'consistent-hash', endpoints: 20 })
    expect(planChoice(hashed)).toEqual({ choice: { by: 'hash', size: 4096 } })
    expect(planChoice({ ...hashed, affinitySeconds: 60 })).toEqual({})
  })
})
