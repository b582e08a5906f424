// Checks what the chart and kustomize add on request, with the real helm, kubectl and API server: the reports of all nodes, and seccomp profiles.

import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { loadSluiceConfig } from '../../src/config/sluice-config.ts'
import { program } from '../cluster/cache.ts'
import { findBinaries } from '../e2e/binaries.ts'
import { type Cluster, startCluster } from '../e2e/cluster.ts'
import {
  type DeployedMode,
  findKind,
  type Manifest,
  modes,
  parseManifests,
  podSpecOf,
  Renderer,
  readDeployed,
} from './rendered-manifests.ts'

const found = await findBinaries(['etcd', 'kube-apiserver', 'kubectl'])
const binaries = 'missing' in found ? '' : found.directory
const helm = program('helm')
const hasHelm = existsSync(helm)
if ('missing' in found) process.stdout.write(`SKIPPED manifests of the reports, kustomize: ${found.missing}\n`)
if (!hasHelm) process.stdout.write(`SKIPPED manifests of the reports, the chart: there is no ${helm}\n`)
const renderer = new Renderer({ helm, kubectl: join(binaries, 'kubectl') })

interface Way {
  readonly way: string
  readonly plain: (mode: DeployedMode) => string
  readonly reporting: (mode: DeployedMode) => string
}

const chart: Way = {
  way: 'chart with fleet.enabled',
  plain: (mode) => renderer.chart(mode),
  reporting: (mode) => renderer.chart(mode, 'fleet.enabled=true'),
}
const overlay: Way = {
  way: 'overlay with the component fleet',
  plain: (mode) => renderer.userOverlay(mode),
  reporting: (mode) => renderer.userOverlay(mode, 'fleet'),
}
const ways = [...(hasHelm ? [chart] : []), ...(binaries === '' ? [] : [overlay])]
const cases = ways.flatMap((one) => modes.map((mode) => [one.way, mode, one] as const))

let cluster: Cluster | undefined
beforeAll(async () => {
  if (binaries === '') return
  cluster = await startCluster({ binaries, flags: ['--allow-privileged'] })
  // A dry run creates no namespace, which other objects need.
  await cluster.apply('{apiVersion: v1, kind: Namespace, metadata: {name: sluice-nodes}}')
})
afterAll(async () => {
  await cluster?.stop()
})

const identify = ({ kind, metadata }: Manifest): string => `${kind} ${metadata.namespace ?? ''}/${metadata.name}`

/** What the second set of manifests has and the first has not. */
function added(before: readonly Manifest[], after: readonly Manifest[]): ReadonlyMap<string, Manifest> {
  const known = new Set(before.map(identify))
  return new Map(
    after.filter((one) => one.kind !== 'ConfigMap' && !known.has(identify(one))).map((one) => [identify(one), one]),
  )
}

describe.each(cases)('the %s in mode %s', (_way, mode, { plain, reporting }) => {
  const plainOnes = () => parseManifests(plain(mode))
  const reportingOnes = () => parseManifests(reporting(mode))

  it('adds exactly the rights and policies of deploy/fleet.yaml', () => {
    expect(added(plainOnes(), reportingOnes())).toEqual(
      new Map(readDeployed('fleet.yaml').map((one) => [identify(one), one])),
    )
  })

  it('tells the proxy to report there, and changes nothing else about the pod', () => {
    const [{ containers: plainContainers, volumes: _, ...spec }, { containers, volumes, ...reportingSpec }] = [
      podSpecOf(plainOnes()),
      podSpecOf(reportingOnes()),
    ]
    expect(reportingSpec).toEqual(spec)
    const flag = '--sluice-config=/etc/sluice/sluice.conf'
    expect(containers).toEqual(plainContainers.map((one) => ({ ...one, args: [...one.args, flag] })))
    const name = volumes.map(({ configMap }) => (configMap as { name: string } | undefined)?.name ?? '').join('')
    const { data } = findKind(reportingOnes(), 'ConfigMap', name)
    expect(loadSluiceConfig('sluice.conf', data?.['sluice.conf'] ?? '').fleet.namespace).toBe('sluice-nodes')
    expect(data?.['config.conf']).toContain(`mode: ${mode}`)
  })

  it('is accepted by the API server', async ({ skip }) => {
    if (cluster === undefined) return skip()
    const answer = await cluster.kubectl(['apply', '--dry-run=server', '--validate=strict', '-f', '-'], reporting(mode))
    expect(answer).toContain('daemonset.apps/sluice created (server dry run)')
    expect(answer).toContain('namespace/sluice-nodes')
    expect(answer).toContain('role.rbac.authorization.k8s.io/sluice-reporter created (server dry run)')
  })
})

describe.skipIf(binaries === '')('a component', () => {
  it('leaves the address of the API server as the overlay sets it', () => {
    const manifests = parseManifests(renderer.userOverlay('nftables', 'seccomp'))
    expect(findKind(manifests, 'ConfigMap', 'sluice-api-server').data).toEqual({ host: '10.0.0.10', port: '6443' })
  })

  it.each(modes)('with a seccomp profile confines the proxy in mode %s, and not the init container', (mode) => {
    const { containers, initContainers } = podSpecOf(parseManifests(renderer.userOverlay(mode, 'seccomp')))
    const seccompProfile = { type: 'Localhost', localhostProfile: 'sluice/proxy.json' }
    expect(containers[0]?.securityContext).toMatchObject({ seccompProfile })
    expect(initContainers[0]?.securityContext).not.toHaveProperty('seccompProfile')
  })
})
