// Renders what is in deploy/: the chart with the real helm, the overlays with the real kubectl.

import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative } from 'node:path'
import { parseAllDocuments } from 'yaml'
import { kubernetesVersion } from '../cluster/cache.ts'

export const deployFolder = join(import.meta.dirname, '../../deploy')
const chart = join(deployFolder, 'chart/sluice')

export const modes = ['nftables', 'iptables', 'ipvs', 'userspace'] as const
export type DeployedMode = (typeof modes)[number]

export interface Manifest {
  readonly kind: string
  readonly metadata: { readonly name: string; readonly namespace?: string }
  readonly data?: Readonly<Record<string, string>>
  readonly rules?: readonly unknown[]
  readonly immutable?: boolean
  readonly spec?: { readonly template?: { readonly spec: PodSpec }; readonly updateStrategy?: unknown }
}

export interface Container {
  readonly image: string
  readonly args: readonly string[]
  readonly securityContext: Readonly<Record<string, unknown>>
  readonly startupProbe?: Probe
  readonly livenessProbe?: Probe
  readonly readinessProbe?: Probe
  readonly volumeMounts: readonly { readonly name: string; readonly mountPath: string; readonly readOnly?: boolean }[]
}

export interface Probe {
  readonly httpGet: { readonly path: string; readonly port: number; readonly host?: string }
}

export interface PodSpec {
  readonly hostNetwork: boolean
  readonly priorityClassName: string
  readonly tolerations: readonly unknown[]
  readonly securityContext: unknown
  readonly initContainers: readonly Container[]
  readonly containers: readonly Container[]
  readonly volumes: readonly Readonly<Record<string, unknown>>[]
}

export interface Answer {
  readonly status: number | null
  readonly stdout: string
  readonly stderr: string
}

/** Both tools, by their paths. */
export class Renderer {
  readonly #helm: string
  readonly #kubectl: string

  constructor(tools: { readonly helm: string; readonly kubectl: string }) {
    this.#helm = tools.helm
    this.#kubectl = tools.kubectl
  }

  /** `settings` are `--set` arguments: `mode=ipvs`. */
  runHelm(command: 'lint' | 'template', settings: readonly string[]): Answer {
    const sets = settings.flatMap((setting) => ['--set', setting])
    const args = command === 'lint' ? ['lint', '--strict', chart] : ['template', 'sluice', chart, '-n', 'kube-system']
    // A helm that is built from its module believes in Kubernetes 1.20 unless a cluster tells otherwise.
    return run(this.#helm, [...args, '--kube-version', kubernetesVersion, ...sets])
  }

  chart(mode: DeployedMode, ...settings: readonly string[]): string {
    return printed(this.runHelm('template', ['apiServer.host=10.0.0.10', `mode=${mode}`, ...settings]))
  }

  overlay(mode: DeployedMode): string {
    return printed(run(this.#kubectl, ['kustomize', join(deployFolder, 'kustomize/overlays', mode)]))
  }

  /** Renders an overlay of a user as docs/install.md has it, with components. */
  userOverlay(mode: DeployedMode, ...components: readonly string[]): string {
    const folder = mkdtempSync(join(tmpdir(), 'sluice-overlay-'))
    try {
      const at = (path: string) => relative(folder, join(deployFolder, 'kustomize', path))
      const overlay = {
        apiVersion: 'kustomize.config.k8s.io/v1beta1',
        kind: 'Kustomization',
        resources: [at(`overlays/${mode}`)],
        components: components.map((name) => at(`components/${name}`)),
        configMapGenerator: [
          { name: 'sluice-api-server', namespace: 'kube-system', behavior: 'merge', literals: ['host=10.0.0.10'] },
        ],
      }
      writeFileSync(join(folder, 'kustomization.yaml'), JSON.stringify(overlay))
      return printed(run(this.#kubectl, ['kustomize', folder]))
    } finally {
      rmSync(folder, { recursive: true })
    }
  }
}

const run = (program: string, args: readonly string[]): Answer =>
  spawnSync(program, args, { encoding: 'utf8', timeout: 60_000 })

function printed({ status, stdout, stderr }: Answer): string {
  if (status !== 0) throw new Error(stderr)
  return stdout
}

export const readDeployed = (path: string): readonly Manifest[] =>
  parseManifests(readFileSync(join(deployFolder, path), 'utf8'))

export const parseManifests = (text: string): readonly Manifest[] =>
  parseAllDocuments(text)
    .map((document) => document.toJS() as Manifest | null)
    .filter((manifest) => manifest !== null)

export function findKind(manifests: readonly Manifest[], kind: string, name = ''): Manifest {
  const found = manifests.find((manifest) => manifest.kind === kind && manifest.metadata.name.startsWith(name))
  if (found === undefined) throw new Error(`there is no ${kind} ${name}`)
  return found
}

export function podSpecOf(manifests: readonly Manifest[]): PodSpec {
  return findKind(manifests, 'DaemonSet').spec?.template?.spec as PodSpec
}
