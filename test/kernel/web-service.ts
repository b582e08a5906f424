// The services of tests on a NodeNetwork: `web` in its two pods, and others that only make the rules longer.

import type { Change } from '../lab/driver.ts'
import { expandObject } from '../scenarios/expand.ts'
import type { Manifest } from '../scenarios/format.ts'
import type { Json } from '../scenarios/twins.ts'
import { clusterIp, podIps } from './node-network.ts'

export const web = (endpoints: readonly string[] = podIps): Change => ({
  drop: [],
  put: [
    expand({ service: 'ns1/web', type: 'NodePort', clusterIP: clusterIp, ports: ['http 80/tcp 30080'] }, 0),
    expand({ slice: 'ns1/web', ports: ['http 8080/tcp'], endpoints: endpoints.map((ip) => `${ip} local`) }, 1),
  ],
})

/** Services that receive no traffic, so that there is something to write. `turn` changes their endpoints. */
export function extras(count: number, turn = 0): Change {
  const put: Manifest[] = []
  for (let i = 0; i < count; i++) {
    const ports = ['http 80/tcp']
    put.push(expand({ service: `extra/svc-${i}`, clusterIP: `172.30.${100 + (i >> 8)}.${i & 255}`, ports }, 2 * i + 2))
    const endpoints = [0, 1, 2].map((n) => `10.200.${i & 255}.${3 * turn + n + 1} remote`)
    put.push(expand({ slice: `extra/svc-${i}`, ports, endpoints }, 2 * i + 3))
  }
  return { drop: [], put }
}

export const expand = (value: Json, serial: number): Manifest => expandObject(value, serial, 4)

/** A service with one endpoint, the first pod. */
export const single = (service: string, clusterIP: string): readonly Manifest[] => [
  expand({ service, clusterIP, ports: ['http 80/tcp'] }, 900),
  expand({ slice: service, ports: ['http 8080/tcp'], endpoints: [`${podIps[0]} local`] }, 901),
]
