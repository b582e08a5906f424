// Starts the whole embedded API server: state, controllers, listener, manifests. They stop in reverse order.

import { join } from 'node:path'
import { Closers } from '../lib/closers.ts'
import { ProxyError } from '../lib/errors.ts'
import { canonicalIp, familyOf, hostPort, isLoopback, isUnspecified, parseCidr } from '../lib/ip.ts'
import type { Logger } from '../lib/log.ts'
import { type Clock, systemClock } from '../lib/time.ts'
import { ensurePrivateDirectory } from '../sys/private-files.ts'
import { createClusterObjects, keepKubernetesService } from './controllers/bootstrap.ts'
import { EndpointController } from './controllers/endpoint-controller.ts'
import { Lifecycle } from './controllers/lifecycle.ts'
import { createSelfSigned, type KeyPair } from './http/certificate.ts'
import { listenApi } from './http/rest-server.ts'
import { ApiRouter } from './http/router.ts'
import {
  createToken,
  createTokenCheck,
  loadCredentials,
  renderKubeconfig,
  type ServerCredentials,
} from './http/server-credentials.ts'
import { createInProcessClient, type InProcessClient } from './in-process-client.ts'
import { type ManifestFolder, watchManifests } from './manifests/folder.ts'
import { Allocations, defaultNodePorts, type NodePortRange } from './requests/allocations.ts'
import { ObjectWriter } from './requests/writes.ts'
import { Registry } from './store/registry.ts'
import { createMemoryLog, openLog } from './store/write-ahead-log.ts'

export interface ApiServerOptions {
  /** The default is loopback. */
  readonly address?: string
  /** 0: any free port. */
  readonly port?: number
  /** Where pods reach the server, if not at the address and port on which it listens: the endpoint of the service `kubernetes`. */
  readonly advertised?: { readonly address: string; readonly port: number }
  /** undefined: the state ends with the process. */
  readonly stateDir?: string
  /** A write-ahead log smaller than this is not replaced by a snapshot. */
  readonly compactBytes?: number
  readonly serviceCidrs?: readonly string[]
  readonly nodePortRange?: NodePortRange
  /** The default is a generated certificate. `false` is plain HTTP without a token, on loopback only. */
  readonly tls?: KeyPair | 'generate' | false
  readonly token?: string
  /** A directory of manifests whose objects the server keeps applied. */
  readonly manifests?: string
  readonly log: Logger
  readonly clock?: Clock
  readonly random?: () => number
  /** More names and addresses for the generated certificate. */
  readonly names?: readonly string[]
  readonly maxConnections?: number
}

export interface ApiServer {
  readonly url: string
  readonly port: number
  /** '' for plain HTTP. */
  readonly token: string
  /** The text of a kubeconfig for clients on this machine. */
  kubeconfig(): string
  readonly registry: Registry
  /** Sends requests without a socket. It has the `request` and `stream` of the API client in kube/client.ts. */
  readonly client: InProcessClient
  readonly manifests: ManifestFolder | undefined
  close(): Promise<void>
}

const defaultCidrs = ['10.96.0.0/16', 'fd00:10:96::/112']

export async function startApiServer(options: ApiServerOptions): Promise<ApiServer> {
  const closers = new Closers()
  try {
    return await open(options, closers)
  } catch (error) {
    await closers.closeAll()
    throw error
  }
}

/** Pushes a closer for every part that it opens. */
async function open(options: ApiServerOptions, closers: Closers): Promise<ApiServer> {
  const { log, clock = systemClock } = options
  const address = checkAddress(options)
  const cidrs = checkCidrs(options.serviceCidrs ?? defaultCidrs)
  const registry = await openRegistry(options, clock)
  closers.push(() => registry.close())
  const writer = openControllers(registry, options, closers)
  let port = options.port ?? 0
  const router = new ApiRouter({
    registry,
    writer,
    clock,
    log,
    address: () => hostPort(address, port),
    ...(options.random === undefined ? {} : { random: options.random }),
  })
  const credentials = chooseCredentials(options, address, clock.now())
  createClusterObjects(registry, cidrs, clock)
  const isAuthorized = credentials === undefined ? undefined : createTokenCheck(credentials.token)
  const keyPair = credentials?.keyPair
  const { maxConnections } = options
  const listener = await listenApi({ router, address, port, keyPair, isAuthorized, maxConnections, log })
  closers.push(() => listener.close())
  port = listener.port
  const advertised = options.advertised ?? { address, port }
  closers.push(keepKubernetesService({ registry, clock, cidr: cidrs[0] ?? '', ...advertised }))
  await registry.settled()
  const manifests = await openManifests(options, { writer, registry, log, clock }, closers)
  const url = urlOf(credentials === undefined ? 'http' : 'https', address, port)
  return {
    url,
    port,
    token: credentials?.token ?? '',
    kubeconfig: () =>
      renderKubeconfig({ server: url, certificate: credentials?.keyPair.cert, token: credentials?.token }),
    registry,
    client: createInProcessClient(router),
    manifests,
    close: () => closers.closeAll(),
  }
}

function checkAddress(options: ApiServerOptions): string {
  const address = canonicalIp(options.address ?? '127.0.0.1')
  if (address === undefined)
    throw new ProxyError('usage', `the address to listen on, ${options.address}, is not a valid IP address`)
  if (options.tls === false && !isLoopback(address)) {
    throw new ProxyError('usage', `without TLS the API server listens on loopback only, not on ${address}`)
  }
  return address
}

/** Returns the ranges in canonical form. */
function checkCidrs(given: readonly string[]): readonly string[] {
  const cidrs = given.flatMap((cidr) => parseCidr(cidr) ?? [])
  const families = new Set(cidrs.map(({ family }) => family))
  if (given.length === 0 || given.length > 2 || cidrs.length !== given.length || families.size !== cidrs.length) {
    throw new ProxyError(
      'usage',
      `the service ranges must be one or two CIDRs of different families, not ${given.join(', ')}`,
    )
  }
  return cidrs.map(({ text }) => text)
}

async function openRegistry(options: ApiServerOptions, clock: Clock): Promise<Registry> {
  const { log } = options
  const onStorageError = (error: unknown) => log.error('Cannot write the state; the change was undone', { error })
  if (options.stateDir === undefined) {
    // Newer than any version that a client may remember from an earlier process on this port.
    const firstVersion = Math.floor(clock.now() * 1000)
    return new Registry({ writeAheadLog: createMemoryLog(), firstVersion, onStorageError })
  }
  ensurePrivateDirectory(options.stateDir)
  const { writeAheadLog, recovered } = await openLog(join(options.stateDir, 'registry'), options.compactBytes)
  if (recovered.dropped > 0)
    log.info('A crash cut off the last write, which was never acknowledged; it is dropped', {
      bytes: recovered.dropped,
    })
  return new Registry({ writeAheadLog, recovered, onStorageError })
}

function openControllers(registry: Registry, options: ApiServerOptions, closers: Closers): ObjectWriter {
  const { clock = systemClock } = options
  const allocations = new Allocations(options.nodePortRange ?? defaultNodePorts, options.random ?? Math.random)
  registry.index((change) => allocations.observe(change))
  const writer = new ObjectWriter(registry, allocations, clock)
  const endpoints = new EndpointController(registry, clock)
  closers.push(() => endpoints.close())
  const lifecycle = new Lifecycle({ registry, writer, allocations, clock })
  closers.push(() => lifecycle.close())
  return writer
}

async function openManifests(
  { manifests: directory }: ApiServerOptions,
  parts: { writer: ObjectWriter; registry: Registry; log: Logger; clock: Clock },
  closers: Closers,
): Promise<ManifestFolder | undefined> {
  if (directory === undefined) return undefined
  const folder = await watchManifests({ directory, ...parts })
  closers.push(() => folder.close())
  return folder
}

/** undefined for plain HTTP. */
function chooseCredentials(options: ApiServerOptions, address: string, now: number): ServerCredentials | undefined {
  const { tls = 'generate', stateDir, token } = options
  if (tls === false) return undefined
  if (tls !== 'generate') return { keyPair: tls, token: token ?? createToken() }
  const own = isUnspecified(address) ? [] : [address]
  const { advertised, names: given = [] } = options
  const more = advertised === undefined ? given : [advertised.address, ...given]
  const names = [...new Set(['localhost', '127.0.0.1', '::1', ...own, ...more])]
  if (stateDir === undefined) return { keyPair: createSelfSigned(names, now), token: token ?? createToken() }
  const stored = loadCredentials(join(stateDir, 'credentials'), names, now)
  return { ...stored, token: token ?? stored.token }
}

/** Clients on this machine reach a server on all addresses by loopback. */
function urlOf(scheme: 'http' | 'https', address: string, port: number): string {
  const loopback = familyOf(address) === 6 ? '::1' : '127.0.0.1'
  return `${scheme}://${hostPort(isUnspecified(address) ? loopback : address, port)}`
}
