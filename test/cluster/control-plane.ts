// The control plane on the fabric: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with keys of their own.

import { writeFileSync } from 'node:fs'
import { type Authority, createAuthority, createTokenKeys } from '../e2e/cluster-certificates.ts'
import { until } from '../support/until.ts'
import { program } from './cache.ts'
import type { Daemon, Machine } from './namespaces.ts'
import { apiServerAddress, podCidrs, serviceCidrs } from './network.ts'
import type { RunFolder } from './run-folder.ts'

const etcdUrl = 'http://127.0.0.1:2379'
export const apiServerUrl = `https://${apiServerAddress}:6443`
const startLimit = { limitMs: 180_000, everyMs: 250 }

export class ControlPlane {
  readonly #fabric: Machine
  readonly #run: RunFolder
  readonly #authority: Authority
  readonly #keys: { readonly signing: string; readonly checking: string }
  #apiServer: Daemon | undefined

  private constructor(fabric: Machine, run: RunFolder, authority: Authority) {
    this.#fabric = fabric
    this.#run = run
    this.#authority = authority
    this.#keys = createTokenKeys(run.path)
  }

  static async start(fabric: Machine, run: RunFolder): Promise<ControlPlane> {
    const plane = new ControlPlane(fabric, run, await createAuthority(run.path))
    await plane.#issueAll()
    fabric.start('etcd', [
      program('etcd'),
      `--data-dir=${run.file('etcd')}`,
      `--listen-client-urls=${etcdUrl}`,
      `--advertise-client-urls=${etcdUrl}`,
      '--listen-peer-urls=http://127.0.0.1:2380',
      '--unsafe-no-fsync', // no data has to survive a power failure
      '--log-level=warn',
    ])
    await until('etcd', () => fabric.run(['curl', '-sf', `${etcdUrl}/health`]), startLimit)
    await plane.startApiServer()
    plane.#startControllers()
    return plane
  }

  async kubectl(
    args: readonly string[],
    options: { readonly input?: string; readonly limitMs?: number } = {},
  ): Promise<string> {
    const common = ['--kubeconfig', this.kubeconfig, '--cache-dir', this.#run.file('kubectl-cache')]
    return await this.#fabric.run([program('kubectl'), ...common, ...args], options)
  }

  /** The kubeconfig of a member of system:masters. */
  get kubeconfig(): string {
    return this.#run.file('admin.kubeconfig')
  }

  /** Writes a key, a certificate and a kubeconfig with this name for the user, who is named as openssl does: /O=group/CN=user. */
  async issueUser(name: string, subject: string): Promise<string> {
    const { certificate, key } = await this.#authority.issue(name, subject)
    const path = this.#run.file(`${name}.kubeconfig`)
    const config = {
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [
        { name: 'c', cluster: { server: apiServerUrl, 'certificate-authority': this.#authority.certificate } },
      ],
      users: [{ name: 'u', user: { 'client-certificate': certificate, 'client-key': key } }],
      contexts: [{ name: 'c', context: { cluster: 'c', user: 'u' } }],
      'current-context': 'c',
    }
    writeFileSync(path, JSON.stringify(config), { mode: 0o600 })
    return path
  }

  async startApiServer(): Promise<void> {
    this.#apiServer = this.#fabric.start('kube-apiserver', this.#apiServerCommand())
    await until('kube-apiserver', () => this.kubectl(['get', '--raw', '/readyz', '--request-timeout=5s']), startLimit)
  }

  async stopApiServer(signal: NodeJS.Signals): Promise<void> {
    await this.#apiServer?.stop(signal)
  }

  /** Removes all history from etcd, as the API server does every five minutes. */
  async compact(): Promise<void> {
    const call = async (name: string, body: unknown) =>
      JSON.parse(await this.#fabric.run(['curl', '-sf', `${etcdUrl}/v3/kv/${name}`, '-d', JSON.stringify(body)])) as {
        readonly header: { readonly revision: string }
      }
    const { header } = await call('range', { key: 'AA==' })
    await call('compaction', { revision: header.revision, physical: true })
  }

  async #issueAll(): Promise<void> {
    const names = ['kubernetes', 'kubernetes.default', 'kubernetes.default.svc', 'kubernetes.default.svc.cluster.local']
    const addresses = [apiServerAddress, '127.0.0.1', '10.96.0.1', 'fd00:96::1']
    await this.#authority.issue('server', '/CN=kube-apiserver', [...addresses, ...names])
    await this.#authority.issue('kubelet-client', '/O=system:masters/CN=kube-apiserver-kubelet-client')
    await this.#authority.issue('front', '/CN=front-proxy-client')
    await this.issueUser('admin', '/O=system:masters/CN=admin')
    await this.issueUser('controllers', '/CN=system:kube-controller-manager')
    await this.issueUser('scheduler', '/CN=system:kube-scheduler')
  }

  #apiServerCommand(): readonly string[] {
    const { file } = this.#run
    return [
      program('kube-apiserver'),
      `--etcd-servers=${etcdUrl}`,
      `--advertise-address=${apiServerAddress}`,
      '--bind-address=0.0.0.0',
      '--secure-port=6443',
      `--tls-cert-file=${file('server.crt')}`,
      `--tls-private-key-file=${file('server.key')}`,
      `--client-ca-file=${file('ca.crt')}`,
      '--authorization-mode=Node,RBAC',
      '--enable-admission-plugins=NodeRestriction',
      '--allow-privileged=true',
      `--service-cluster-ip-range=${serviceCidrs}`,
      '--service-account-issuer=https://kubernetes.default.svc.cluster.local',
      `--service-account-signing-key-file=${this.#keys.signing}`,
      `--service-account-key-file=${this.#keys.checking}`,
      `--kubelet-client-certificate=${file('kubelet-client.crt')}`,
      `--kubelet-client-key=${file('kubelet-client.key')}`,
      '--kubelet-preferred-address-types=InternalIP',
      `--requestheader-client-ca-file=${file('ca.crt')}`,
      '--requestheader-allowed-names=front-proxy-client',
      '--requestheader-username-headers=X-Remote-User',
      '--requestheader-group-headers=X-Remote-Group',
      '--requestheader-extra-headers-prefix=X-Remote-Extra-',
      `--proxy-client-cert-file=${file('front.crt')}`,
      `--proxy-client-key-file=${file('front.key')}`,
      '--enable-aggregator-routing=true',
      '--max-requests-inflight=800',
      '--profiling=false',
    ]
  }

  #startControllers(): void {
    const { file } = this.#run
    const credentials = (name: string) => [
      `--kubeconfig=${file(`${name}.kubeconfig`)}`,
      `--authentication-kubeconfig=${file(`${name}.kubeconfig`)}`,
      `--authorization-kubeconfig=${file(`${name}.kubeconfig`)}`,
      '--leader-elect=false',
    ]
    this.#fabric.start('kube-controller-manager', [
      program('kube-controller-manager'),
      ...credentials('controllers'),
      `--service-account-private-key-file=${this.#keys.signing}`,
      `--root-ca-file=${file('ca.crt')}`,
      '--use-service-account-credentials=true',
      `--cluster-signing-cert-file=${file('ca.crt')}`,
      `--cluster-signing-key-file=${file('ca.key')}`,
      '--allocate-node-cidrs=false',
      `--cluster-cidr=${podCidrs}`,
      `--service-cluster-ip-range=${serviceCidrs}`,
    ])
    this.#fabric.start('kube-scheduler', [program('kube-scheduler'), ...credentials('scheduler')])
  }
}
