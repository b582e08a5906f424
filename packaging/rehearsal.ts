// Runs what every start runs, without a network and without a kernel: V8 compiles a function when it is called first, and a snapshot keeps
// what is compiled. Nothing of it may outlive the rehearsal but compiled code: everything that the daemon opens is closed, and what stands
// for the outside world is replaced again.

import fs from 'node:fs'
import v8 from 'node:v8'
import { chooseRenderer } from '../src/apiserver/http/render.ts'
import type { Json } from '../src/apiserver/schema/json.ts'
import { getResource } from '../src/apiserver/schema/served-resources.ts'
import type { Mode } from '../src/backend/backend.ts'
import { findMode, modes, proxyDefaultMode } from '../src/backend/modes.ts'
import { type Options, resolveOptions } from '../src/config/flags/options.ts'
import { makeSettings } from '../src/daemon/backend-settings.ts'
import { runDaemon } from '../src/daemon/daemon.ts'
import { retireOtherModes } from '../src/daemon/retire-modes.ts'
import { protobufType } from '../src/kube/protobuf/read-body.ts'
import { createLogger } from '../src/lib/log.ts'
import { type Clock, nextTurn, systemClock } from '../src/lib/time.ts'
import { replaceLibrary } from '../src/sys/libc.ts'
import { type Platform, platform } from '../src/sys/platform/platform.ts'
import { programSearch } from '../src/sys/process/find-program.ts'
import { makeRehearsalHttp, type RehearsalAnswer } from './rehearsal-http.ts'
import { makeRehearsalKernel } from './rehearsal-kernel.ts'

/** A clock that stands still: two builds must give the same bytes. What is due at all is due at once. */
const stillClock: Clock = {
  now: () => 0,
  monotonic: () => 0,
  after(ms, run) {
    const immediate = ms > 100 ? undefined : setImmediate(run)
    return { cancel: () => clearImmediate(immediate) }
  },
}

/** Changes nothing on the machine that builds. What is not here asks the kernel, which is replaced, too. */
const quietPlatform: Partial<Platform> = {
  hasIpv6: () => true,
  tuneConntrack: () => [],
  setOomScore: () => {},
  releaseMemory: () => {},
  openFileLimit: () => 1024,
  tracksConnections: false,
  sockets: { ...platform.sockets, listen: async () => {} },
}

/** Modes whose starts are rehearsed. */
const rehearsedModes = ['nftables', 'iptables'] as const

type RehearsedMode = (typeof rehearsedModes)[number]

/** Node ports on localhost would need a setting of the kernel. */
const makeConfiguration = (mode: RehearsedMode): string => `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection:
  kubeconfig: /proc/self/cwd/kubeconfig
mode: ${mode}
iptables:
  localhostNodePorts: false
  minSyncPeriod: 1s
conntrack: {min: 0, tcpEstablishedTimeout: 24h}
hostnameOverride: here
clusterCIDR: 10.244.0.0/16
`

/** No state is kept on disk. */
const settings = `apiVersion: sluice/v1alpha1
kind: SluiceConfiguration
state:
  directory: ""
`

const objects: Readonly<Record<string, Json>> = {
  nodes: {
    kind: 'Node',
    apiVersion: 'v1',
    metadata: { name: 'here', resourceVersion: '1', labels: { 'kubernetes.io/hostname': 'here' } },
    spec: { podCIDR: '10.244.0.0/24', podCIDRs: ['10.244.0.0/24'] },
    status: { addresses: [{ type: 'InternalIP', address: '192.0.2.1' }] },
  },
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

/** What the watch sends later: an endpoint goes. */
const changedObjects: Readonly<Record<string, Json>> = {
  endpointslices: {
    ...(objects.endpointslices as object),
    metadata: {
      name: 'web-1',
      namespace: 'rehearsal',
      resourceVersion: '2',
      labels: { 'kubernetes.io/service-name': 'web' },
    },
    endpoints: [{ addresses: ['10.244.0.2'], conditions: { ready: true }, nodeName: 'here' }],
  },
}

/** Resolves when the daemon has served a service in each mode and has stopped. */
export async function rehearse(): Promise<void> {
  for (const mode of rehearsedModes) await rehearseMode(mode)
}

async function rehearseMode(mode: RehearsedMode): Promise<void> {
  const restore = replaceOutside()
  try {
    const options = readOptions(mode)
    const { config, sluice } = options
    const log = createLogger({ ...config.logging, write: () => {} })
    const backend = findMode(config.mode).makeBackend(makeSettings(config, sluice.traffic))
    await backend.families()
    const stop = new AbortController()
    const onServing = async () => {
      await retireOtherModes(config, log, noOtherProxies, stop.signal)
      // What follows a sync comes in some turns of the event loop, and each program takes some.
      for (let turn = 0; turn < 300; turn++) await nextTurn()
      stop.abort(new Error('the rehearsal ends'))
    }
    await runDaemon({ options, backend, log, signal: stop.signal, onServing })
  } finally {
    restore()
  }
}

const noOtherProxies = { listModes: async () => new Set<Mode>(), waitForEnd: async () => {} }

function readOptions(mode: RehearsedMode): Options {
  const described = { name: 'Linux', modes: modes.map(({ name }) => name), mode: proxyDefaultMode } as const
  const argv = ['--config=/configuration', '--sluice-config=/settings', '--v=0']
  const readFile = (path: string) => (path === '/settings' ? settings : makeConfiguration(mode))
  // No file is watched for changes.
  return { ...resolveOptions(argv, readFile, {}, described), configFile: '', sluiceFile: '' }
}

/** Returns what brings the outside world back. */
function replaceOutside(): () => void {
  const http = makeRehearsalHttp(answer)
  const restored = [
    replaceMembers(systemClock, stillClock),
    replaceMembers(platform, quietPlatform),
    replaceMembers(programSearch, { folders: ['/proc/self/cwd'] }),
    // Node keeps what some of these have returned last, and the length of the others moves everything in the heap.
    replaceMembers(process as object, stillProcess),
    replaceMembers(v8 as object, { getHeapStatistics: () => ({}), getHeapSpaceStatistics: () => [] }),
    replaceMembers(fs as object, stillFiles),
    replaceMembers(globalThis, { setTimeout: (() => ({ unref() {} })) as unknown as typeof setTimeout }),
    // It registers its signals for finalisation, and a snapshot must not contain what waits for that.
    replaceMembers(AbortSignal, { any: followSignals }),
    // It is an object of C++, which a snapshot cannot contain.
    replaceMembers(globalThis, { PerformanceObserver: IdleObserver as unknown as typeof PerformanceObserver }),
    replaceMembers(globalThis as { rehearsedModules?: object }, { rehearsedModules: { http, https: http, tls: {} } }),
  ]
  replaceLibrary(makeRehearsalKernel())
  return () => {
    for (const restore of restored) restore()
    replaceLibrary(undefined)
  }
}

/** A program, a folder or a short output of a program. */
const anyFile = { isFile: () => true, isDirectory: () => true, uid: 0, mode: 0o755, size: 100 }

const { readFileSync } = fs

const stillFiles = {
  statSync: () => anyFile,
  fstatSync: () => anyFile,
  readdirSync: () => [],
  /** What the kernel says about this process and its network is different in each build. */
  readFileSync: (path: string, encoding: 'utf8') =>
    /^\/proc\/(?!self\/cwd)/.test(path) ? 'VmRSS: 1 kB\n' : readFileSync(path, encoding),
}

const stillProcess = {
  cpuUsage: () => ({ user: 0, system: 0 }),
  hrtime: Object.assign((): [number, number] => [0, 0], { bigint: () => 0n }),
  getActiveResourcesInfo: () => [],
  _getActiveHandles: () => [],
  _getActiveRequests: () => [],
}

class IdleObserver {
  observe(): void {}
}

/** As AbortSignal.any, but it holds what it returns. */
function followSignals(signals: Iterable<AbortSignal>): AbortSignal {
  const any = new AbortController()
  for (const signal of signals) {
    if (signal.aborted) any.abort(signal.reason)
    signal.addEventListener('abort', () => any.abort(signal.reason), { once: true })
  }
  return any.signal
}

function replaceMembers<T extends object>(object: T, members: Partial<T>): () => void {
  const before = Object.fromEntries(Object.keys(members).map((key) => [key, object[key as keyof T]]))
  Object.assign(object, members)
  return () => Object.assign(object, before)
}

/** Answers a watch with one object, the bookmark that ends the snapshot, and later a change, in protobuf if it has that form, and everything else with an empty object. */
function answer({ method, path }: { readonly method: string; readonly path: string }): RehearsalAnswer {
  const plural = path.split('?')[0]?.split('/').at(-1) ?? ''
  if (method !== 'GET') return { status: 201, type: 'application/json', body: Buffer.from('{}') }
  const accept = `${protobufType},application/json`
  const renderer = chooseRenderer(getResource(plural), accept, new URLSearchParams(), () => 0)
  const object = objects[plural]
  const frames = [
    ...(object === undefined ? [] : [renderer.formatEvent('ADDED', object, undefined)]),
    renderer.formatBookmark({ resourceVersion: '1', annotations: { 'k8s.io/initial-events-end': 'true' } }),
  ]
  const body = Buffer.from(frames.join(''), 'latin1')
  const changed = changedObjects[plural]
  const later = changed && Buffer.from(renderer.formatEvent('MODIFIED', changed, undefined), 'latin1')
  return { status: 200, type: renderer.watchType, body, isOpen: true, later }
}
