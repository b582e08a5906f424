// Runs what every start runs, as far as it needs neither a network nor a kernel: V8 compiles a function when it is called first, and a
// snapshot keeps what is compiled. Nothing of it may outlive the rehearsal but compiled code.

import { chooseRenderer } from '../src/apiserver/http/render.ts'
import type { Json } from '../src/apiserver/schema/json.ts'
import { getResource } from '../src/apiserver/schema/served-resources.ts'
import type { Backend, Held } from '../src/backend/backend.ts'
import { findMode, modes, proxyDefaultMode } from '../src/backend/modes.ts'
import { resolveOptions } from '../src/config/flags/options.ts'
import { makeSettings } from '../src/daemon/backend-settings.ts'
import { makeNodeFacts } from '../src/daemon/node/node-facts.ts'
import { NodeViews } from '../src/daemon/node/node-views.ts'
import { Engine } from '../src/engine/engine.ts'
import { SyncJournal } from '../src/engine/journal.ts'
import { protobufType } from '../src/kube/protobuf/read-body.ts'
import { Reflector } from '../src/kube/reflect/reflector.ts'
import { endpointSlices, services } from '../src/kube/reflect/watched-resources.ts'
import { silentLogger as log } from '../src/lib/log.ts'
import type { Clock } from '../src/lib/time.ts'

/** A clock that stands still: two builds must give the same bytes. What is due at all is due at once. */
const clock: Clock = {
  now: () => 0,
  monotonic: () => 0,
  after(ms, run) {
    const immediate = ms > 100 ? undefined : setImmediate(run)
    return { cancel: () => clearImmediate(immediate) }
  },
}

const configuration = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection:
  kubeconfig: /nowhere
mode: nftables
clusterCIDR: 10.244.0.0/16
`

const objects: Readonly<Record<string, Json>> = {
  services: {
    kind: 'Service',
    apiVersion: 'v1',
    metadata: { name: 'web', namespace: 'rehearsal', uid: 'u', resourceVersion: '1', labels: { app: 'web' } },
    spec: {
      type: 'NodePort',
      clusterIP: '10.96.0.1',
      clusterIPs: ['10.96.0.1'],
      ipFamilies: ['IPv4'],
      ports: [{ name: 'http', protocol: 'TCP', port: 80, targetPort: 8080, nodePort: 30080 }],
      selector: { app: 'web' },
    },
  },
  endpointslices: {
    kind: 'EndpointSlice',
    apiVersion: 'discovery.k8s.io/v1',
    metadata: {
      name: 'web-1',
      namespace: 'rehearsal',
      resourceVersion: '1',
      labels: { 'kubernetes.io/service-name': 'web' },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints: [
      { addresses: ['10.244.0.2'], conditions: { ready: true }, nodeName: 'here' },
      { addresses: ['10.244.1.2'], conditions: { ready: true }, nodeName: 'there' },
    ],
  },
}

/** Resolves when a service has gone from its objects to the data plane, of which only the writing is left out. */
export async function rehearse(): Promise<void> {
  const platform = { name: 'Linux', modes: modes.map(({ name }) => name), mode: proxyDefaultMode } as const
  const { config, sluice } = resolveOptions(['--config=/nowhere', '--v=0'], () => configuration, {}, platform)
  const backend = withoutKernel(findMode(config.mode).makeBackend(makeSettings(config, sluice.traffic)))
  const facts = makeNodeFacts(config, { name: 'here', record: undefined, interfaceAddresses: ['192.0.2.1'] })
  const views = new NodeViews({ ...facts, apiServers: [] }, [4])
  const journal = new SyncJournal({ log })
  const engine = new Engine({
    backend,
    families: [4],
    views: (family) => views.get(family),
    settings: { minSyncMs: 0, syncMs: config.syncPeriod },
    limits: sluice.limits,
    clock,
    log,
    journal,
  })
  await engine.start()
  const stop = new AbortController()
  const synced = new Promise<void>((resolve) => {
    journal.subscribe({
      report: ({ services }) => {
        if (services.length > 0) resolve()
      },
    })
  })
  const client = { stream: async ({ path }: { readonly path: string }) => streamObject(path, stop.signal), request }
  const running = [
    new Reflector({ client, clock, log, ...services, sink: engine.store.services }).run(stop.signal),
    new Reflector({ client, clock, log, ...endpointSlices, sink: engine.store.slices }).run(stop.signal),
  ]
  await synced
  stop.abort()
  await Promise.allSettled(running)
  await engine.stop()
}

const request = async () => ({ status: 404, json: undefined })

function withoutKernel(backend: Backend<Held>): Backend<Held> {
  return {
    ...backend,
    open: async () => ({
      observe: async () => [],
      apply: async () => ({ refused: [] }),
      drifted: () => false,
      close: async () => {},
    }),
  }
}

/** One object and the bookmark that ends the snapshot, as the API server sends them in protobuf. */
async function* streamObject(path: string, signal: AbortSignal): AsyncGenerator<readonly Buffer[]> {
  const plural = path.split('/').at(-1) ?? ''
  const renderer = chooseRenderer(getResource(plural), protobufType, new URLSearchParams(), Date.now)
  const frames = [
    renderer.formatEvent('ADDED', objects[plural] ?? {}, undefined),
    renderer.formatBookmark({ resourceVersion: '1', annotations: { 'k8s.io/initial-events-end': 'true' } }),
  ]
  yield frames.map((frame) => Buffer.from(frame, 'latin1').subarray(lengthBytes))
  await new Promise((resolve) => signal.addEventListener('abort', resolve))
}

/** A frame begins with its length. */
const lengthBytes = 4
