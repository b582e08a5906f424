// Many simulated nodes in one process: each has the real client and the four reflectors of the proxy, and sinks that only count.
//
// Its parent sends one message of type `Assignment`, and then questions; it answers each with `NodeFigures`.

import { Client, defaultUserAgent } from '../src/kube/client.ts'
import { loadConnection } from '../src/kube/kubeconfig.ts'
import { chooseAccept } from '../src/kube/protobuf/accept-types.ts'
import type { RecordSink } from '../src/kube/reflect/change-filter.ts'
import { Reflector } from '../src/kube/reflect/reflector.ts'
import {
  describeOwnNode,
  endpointSlices,
  serviceCidrs,
  services,
  type WatchedResource,
} from '../src/kube/reflect/watched-resources.ts'
import { silentLogger as log } from '../src/lib/log.ts'
import { systemClock as clock } from '../src/lib/time.ts'
import type { Assignment, NodeFigures } from './fleet-nodes.ts'

let synced = 0
let delivered = 0
let retried = 0
let lists = 0
let failed: Record<string, number> = {}
let accepted: number[] = []

const observer = {
  request({ code, watch }: { readonly code: string; readonly watch: boolean }) {
    if (!watch) lists++
    else if (code === '200') accepted.push(Date.now())
    else failed[code] = (failed[code] ?? 0) + 1
  },
  throttled() {},
  retried() {
    retried++
  },
}

const makeSink = (onSynced: () => void): RecordSink<unknown> => ({
  put: () => {
    delivered++
  },
  drop: () => {
    delivered++
  },
  synced: onSynced,
  problem: () => {},
})

function startNode(assignment: Assignment, at: number): void {
  const { kubeconfig, tokens, contentType } = assignment
  const plain = loadConnection({ kubeconfig, master: '', env: {} })
  const connection = { ...plain, auth: { kind: 'token', token: tokens[at] as string } as const }
  const accept = chooseAccept({ acceptContentTypes: '', contentType })
  // The limits are the defaults of kube-proxy.
  const options = { qps: 5, burst: 10, accept, userAgent: defaultUserAgent, log, clock, observer }
  const client = new Client(connection, options)
  let kinds = 0
  const reflect = <R>(resource: WatchedResource<R>, onSynced = () => {}) => {
    const sink = makeSink(() => {
      kinds++
      if (kinds === 4) synced++
      onSynced()
    })
    void new Reflector({ ...resource, client, clock, log, sink }).run(new AbortController().signal)
  }
  // As in the daemon: the proxy reads everything else once it knows its own node.
  reflect(describeOwnNode(`node-${assignment.first + at}`), () => {
    reflect(services)
    reflect(endpointSlices)
    reflect(serviceCidrs)
  })
}

process.on('message', (message: Assignment | 'figures' | 'forget') => {
  if (message === 'forget') {
    accepted = []
    failed = {}
    retried = 0
    lists = 0
    delivered = 0
  } else if (message !== 'figures') for (const at of message.tokens.keys()) startNode(message, at)
  const figures: NodeFigures = { synced, delivered, failed, retried, lists, accepted }
  process.send?.(figures)
})
process.on('disconnect', () => process.exit())
