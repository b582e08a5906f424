// Checks the ways to install in deploy/ with the real helm, kubectl and API server: every mode renders, asks for little privilege, and is
// accepted.

import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { parse } from 'yaml'
import { program } from '../cluster/cache.ts'
import { findBinaries } from '../e2e/binaries.ts'
import { type Cluster, startCluster } from '../e2e/cluster.ts'
import {
  type Container,
  type DeployedMode,
  findKind,
  type Manifest,
  modes,
  type PodSpec,
  parseManifests,
  podSpecOf,
  Renderer,
  readDeployed,
} from './rendered-manifests.ts'

const found = await findBinaries(['etcd', 'kube-apiserver', 'kubectl'])
const binaries = 'missing' in found ? '' : found.directory
const helm = program('helm')
const hasHelm = existsSync(helm)
if ('missing' in found) process.stdout.write(`SKIPPED manifests, kustomize and the API server: ${found.missing}\n`)
if (!hasHelm) process.stdout.write(`SKIPPED manifests, the chart: no ${helm}; test/cluster/build makes it\n`)
const renderer = new Renderer({ helm, kubectl: join(binaries, 'kubectl') })

/** docs/security.md says what each mode needs them for. */
const capabilities: Readonly<Record<DeployedMode, readonly string[]>> = {
  nftables: ['NET_ADMIN'],
  iptables: ['NET_ADMIN', 'NET_RAW'],
  ipvs: ['NET_ADMIN', 'NET_RAW'],
  userspace: ['NET_ADMIN', 'NET_RAW'],
}

const ways = [
  ...(hasHelm ? [['chart', (mode: DeployedMode) => renderer.chart(mode)] as const] : []),
  ...(binaries !== '' ? [['overlay', (mode: DeployedMode) => renderer.overlay(mode)] as const] : []),
]
const cases = ways.flatMap(([way, render]) => modes.map((mode) => [way, mode, () => render(mode)] as const))

/** The host's files that the proxy may write. */
const writable = ['/run/sluice', '/run/xtables.lock', '/var/lib/sluice/proxy']

function expectLittlePrivilege(spec: PodSpec, adds: readonly string[]): void {
  const [init, ...moreInit] = spec.initContainers as [Container]
  const [proxy, ...more] = spec.containers as [Container]
  expect([moreInit, more]).toEqual([[], []])
  expect(spec.securityContext).toEqual({ seccompProfile: { type: 'RuntimeDefault' } })
  expect(proxy.securityContext).toEqual({
    privileged: false,
    allowPrivilegeEscalation: false,
    readOnlyRootFilesystem: true,
    runAsUser: 0,
    capabilities: { drop: ['ALL'], add: adds },
  })
  expect(init.args).toContain('--init-only')
  expect(proxy.args).toEqual(init.args.filter((arg) => arg !== '--init-only'))
  for (const { mountPath, readOnly } of [...init.volumeMounts, ...proxy.volumeMounts]) {
    expect(readOnly === true || writable.includes(mountPath), mountPath).toBe(true)
  }
}

describe.each(cases)('the %s in mode %s', (_way, mode, render) => {
  it('runs the proxy of that mode with little privilege, before other pods, on every node', () => {
    const manifests = parseManifests(render())
    const spec = podSpecOf(manifests)
    expectLittlePrivilege(spec, capabilities[mode])
    expect(spec).toMatchObject({
      hostNetwork: true,
      priorityClassName: 'system-node-critical',
      tolerations: [{ operator: 'Exists' }],
    })
    expect(findKind(manifests, 'DaemonSet').spec?.updateStrategy).toEqual({
      type: 'RollingUpdate',
      rollingUpdate: { maxUnavailable: '10%' },
    })
    expect(spec.containers[0]?.image).toBe(mode === 'nftables' ? 'sluice:nftables-0.1.0' : 'sluice:0.1.0')
    const config = findKind(manifests, 'ConfigMap', spec.volumes.map(configMapName).join(''))
    expect(parse(config.data?.['config.conf'] as string)).toMatchObject({ kind: 'KubeProxyConfiguration', mode })
  })

  it('has probes that wait for the API server, and that only a stuck proxy fails', () => {
    const { startupProbe, livenessProbe, readinessProbe } = podSpecOf(parseManifests(render()))
      .containers[0] as Container
    const httpGet = { path: '/livez', port: 10256 }
    expect([startupProbe, livenessProbe, readinessProbe]).toMatchObject([{ httpGet }, { httpGet }, { httpGet }])
  })

  it('is accepted by the API server', async ({ skip }) => {
    if (cluster === undefined) return skip()
    expect(await dryRun(cluster, render())).toContain('daemonset.apps/sluice created (server dry run)')
  })
})

const configMapName = (volume: PodSpec['volumes'][number]): string =>
  (volume.configMap as { name: string } | undefined)?.name ?? ''

describe.skipIf(cases.length < 2 * modes.length)('the chart and the overlays', () => {
  it.each(modes)('make the same pods in mode %s', (mode) => {
    const [fromChart, fromOverlay] = [renderer.chart(mode), renderer.overlay(mode)].map((text) =>
      comparable(podSpecOf(parseManifests(text))),
    )
    expect(fromChart).toEqual(fromOverlay)
  })
})

/** What may differ: how the address of the API server and the configuration get in, and what the chart lets users choose. */
function comparable({ initContainers, containers, volumes, ...spec }: PodSpec): unknown {
  const plain = (list: readonly Container[]) =>
    list.map((one) => ({ ...one, env: undefined, imagePullPolicy: undefined, command: undefined }))
  return {
    ...spec,
    terminationGracePeriodSeconds: undefined,
    initContainers: plain(initContainers),
    containers: plain(containers),
    volumes: Object.fromEntries(volumes.map((volume) => [volume.name, 'configMap' in volume ? '' : volume])),
  }
}

describe.skipIf(!hasHelm)('the values of the chart', () => {
  it.each(modes)('pass the lint in mode %s', (mode) => {
    expect(renderer.runHelm('lint', ['apiServer.host=10.0.0.10', `mode=${mode}`])).toMatchObject({ status: 0 })
  })

  it.each([
    ['a mode that does not exist', ['mode=ebpf'], 'mode'],
    ['no address of the API server', ['apiServer.host='], 'host'],
    ['a URL as the address of the API server', ['apiServer.host=https://a'], 'host'],
    ['a misspelt value', ['toleration=x'], 'toleration'],
    ['a bind address without a port', ['healthzBindAddress=0.0.0.0'], 'healthzBindAddress'],
  ])('are refused by the schema: %s', (_what, settings, name) => {
    const { status, stderr } = renderer.runHelm('template', ['apiServer.host=10.0.0.10', ...settings])
    expect(status).not.toBe(0)
    expect(stderr).toContain('the specifications of the schema')
    expect(stderr).toContain(name)
  })

  it.each([
    ['127.0.0.1:9999', { path: '/livez', port: 9999, host: '127.0.0.1' }],
    ['[::]:10300', { path: '/livez', port: 10300 }],
    ['[fd00::1]:10300', { path: '/livez', port: 10300, host: 'fd00::1' }],
  ])('move the probes with the health server to %s', (address, httpGet) => {
    for (const setting of [`healthzBindAddress=${address}`, `config.healthzBindAddress=${address}`]) {
      const proxy = podSpecOf(parseManifests(renderer.chart('nftables', setting))).containers[0] as Container
      expect([proxy.startupProbe?.httpGet, proxy.livenessProbe?.httpGet]).toEqual([httpGet, httpGet])
    }
  })

  it('leave out the probes without a health server', () => {
    const proxy = podSpecOf(parseManifests(renderer.chart('nftables', 'healthzBindAddress='))).containers[0]
    expect(Object.keys(proxy ?? {}).filter((key) => key.endsWith('Probe'))).toEqual([])
  })

  it('make a ConfigMap of another name for another configuration, so that old pods keep theirs', () => {
    const maps = modes.map((mode) => findKind(parseManifests(renderer.chart(mode)), 'ConfigMap'))
    expect(new Set(maps.map(({ metadata }) => metadata.name)).size).toBe(modes.length)
    expect(maps.every(({ immutable }) => immutable)).toBe(true)
  })
})

describe('the role', () => {
  const rules = (manifests: readonly Manifest[]) => findKind(manifests, 'ClusterRole').rules
  const own = rules(readDeployed('rbac.yaml'))

  it('is the same in the base of the overlays', () => {
    expect(rules(readDeployed('kustomize/base/rbac.yaml'))).toEqual(own)
  })

  it.skipIf(!hasHelm)('is the same in the chart', () => {
    expect(rules(parseManifests(renderer.chart('nftables')))).toEqual(own)
  })
})

describe('the static pod', () => {
  it('has little privilege', () => {
    expectLittlePrivilege(staticPod().spec as unknown as PodSpec, ['NET_ADMIN', 'NET_RAW'])
  })

  it('is accepted by the API server', async ({ skip }) => {
    if (cluster === undefined) return skip()
    await cluster.apply('{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: kube-system}}')
    expect(await dryRun(cluster, JSON.stringify(staticPod()))).toContain('pod/sluice created (server dry run)')
  })
})

const staticPod = (): Manifest => findKind(readDeployed('static-pod.yaml'), 'Pod')

let cluster: Cluster | undefined
beforeAll(async () => {
  if (binaries !== '') cluster = await startCluster({ binaries, flags: ['--allow-privileged'] })
})
afterAll(async () => {
  await cluster?.stop()
})

const dryRun = (on: Cluster, manifests: string): Promise<string> =>
  on.kubectl(['apply', '--dry-run=server', '--validate=strict', '-f', '-'], manifests)
