import { describe, expect, it, vi } from 'vitest'
import { parse } from 'yaml'
import { directory, shop, sluice } from '../run-command.ts'

const slice = (ips: readonly string[]) => `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-more, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints: [${ips.map((ip) => `{addresses: [${ip}], conditions: {ready: true}, nodeName: a}`).join(', ')}]
`

const service = (nodePort: number) => `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080, nodePort: ${nodePort}}]
`

async function plan(change: string, ...more: string[]) {
  const path = directory({ 'shop.yaml': shop })
  const file = `${directory({ 'change.yaml': change })}/change.yaml`
  return sluice('plan', '-f', file, '--manifests', path, '--node', 'a', '--no-check', ...more)
}

describe('plan', () => {
  it('exits with 0 if nothing changes: fields that a server fills in keep their present values', async () => {
    const { status, stdout } = await plan(service(30080))
    expect(stdout).toContain('No change.')
    expect(status).toBe(0)
  })

  it('exits with 2 and shows the entries that change, are put and are dropped', async () => {
    const moved = await plan(service(30081))
    expect(moved.status).toBe(2)
    expect(moved.stdout).toContain(
      '+ element service-nodeports { tcp . 30081 }: goto np-masquerade-2: 10.1.0.11:8080, 10.1.1.12:8080',
    )
    expect(moved.stdout).toContain(
      '- element service-nodeports { tcp . 30080 }: goto np-masquerade-2: 10.1.0.11:8080, 10.1.1.12:8080',
    )
    expect(moved.stdout).toContain('1 to put, 0 to change, 1 to drop')
    const scaled = await plan(slice(['10.1.0.77']))
    expect(scaled.stdout).toContain('~ element service-ips { 10.96.0.50 . tcp . 80 }')
    expect(scaled.stdout).toContain('+ element hairpin-connections { 10.1.0.77 . 10.1.0.77 . tcp . 8080 }')
  })

  it('shows what deleting removes', async () => {
    const { status, stdout } = await plan(service(30080), '--delete', '-o', 'yaml')
    expect(status).toBe(2)
    const { changes } = parse(stdout) as { changes: { action: string; service: string; name: string }[] }
    expect(changes.every(({ action, service: whose }) => action === 'drop' && whose === 'shop/web')).toBe(true)
    expect(changes.map(({ name }) => name)).toContain('element cluster-ips { 10.96.0.50 }')
  })

  it('uses placeholders for addresses that the server would allocate, and says so', async () => {
    const fresh = 'apiVersion: v1\nkind: Service\nmetadata: {name: new}\nspec: {type: NodePort, ports: [{port: 80}]}\n'
    const { status, stdout } = await plan(fresh, '--mode', 'nftables')
    expect(status).toBe(2)
    expect(stdout).toMatch(/default\/new: the API server will allocate a cluster IP; 10\.96\.\S+ is a placeholder/)
    expect(stdout).toMatch(/allocate a node port; 3\d{4} is a placeholder/)
    const local = fresh.replace('NodePort', 'LoadBalancer, externalTrafficPolicy: Local')
    expect((await plan(local, '--mode', 'nftables')).stdout).toMatch(
      /allocate a health check port; 3\d{4} is a placeholder/,
    )
  })

  it('applies the limits of the proxy: a service beyond them is not programmed, and the limit is named', async () => {
    const ips = Array.from({ length: 2001 }, (_, i) => `198.18.${i >> 8}.${i & 255}`)
    const big = `apiVersion: v1\nkind: Service\nmetadata: {name: big}\nspec: {ports: [{port: 80}], externalIPs: [${ips.join(', ')}]}\n`
    const { status, stdout } = await plan(big, '--mode', 'nftables')
    expect(stdout).toContain('more than limits.addressesPerService allows (2000)')
    expect(stdout).not.toContain('198.18.0.1')
    expect(status).toBe(0)
    const config = 'apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\nlimits: {addressesPerService: 3000}\n'
    vi.stubEnv('SLUICE_CONFIG', `${directory({ 'sluice.yaml': config })}/sluice.yaml`)
    expect((await plan(big, '--mode', 'nftables')).status).toBe(2)
    vi.unstubAllEnvs()
  })

  it('gives a service the addresses of the families it asks for', async () => {
    const fresh = (spec: string) =>
      `apiVersion: v1\nkind: Service\nmetadata: {name: new}\nspec: {${spec}, ports: [{port: 80}]}\n`
    const added = async (spec: string) => {
      const { stdout } = await plan(fresh(spec), '--mode', 'nftables', '-o', 'json')
      const { changes } = JSON.parse(stdout) as { changes: { name: string }[] }
      return changes.flatMap(({ name }) =>
        name.startsWith('element cluster-ips') ? [name.includes('::') ? 6 : 4] : [],
      )
    }
    expect(await added('ipFamilies: [IPv6]')).toEqual([6])
    expect(await added('ipFamilyPolicy: RequireDualStack')).toEqual([4, 6])
    expect(await added('ipFamilyPolicy: PreferDualStack, ipFamilies: [IPv6, IPv4]')).toEqual([4, 6])
    expect(await added('ipFamilyPolicy: SingleStack, clusterIP: 10.96.0.77')).toEqual([4])
    expect(await added('clusterIP: "fd00:10:96::77"')).toEqual([6])
  })

  it('derives slices from the pods of a file, and ignores kinds that do not matter', async () => {
    const pods = [
      'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n',
      'apiVersion: v1\nkind: Service\nmetadata: {name: new}\nspec: {clusterIP: 10.96.0.77, selector: {a: b}, ports: [{port: 80}]}\n',
      'apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {a: b}}\nstatus: {podIP: 10.1.0.99}\n',
    ].join('---\n')
    const { status, stdout } = await plan(pods, '--mode', 'nftables')
    expect(status).toBe(2)
    expect(stdout).toContain('+ element service-ips { 10.96.0.77 . tcp . 80 }: goto lb-1: 10.1.0.99:80')
    expect(stdout).toMatch(/! \S+change\.yaml:2: ConfigMap default\/c is ignored/)
    expect(stdout).not.toContain('is a placeholder')
    const gone = await plan(
      'apiVersion: v1\nkind: Pod\nmetadata: {name: web-1, namespace: shop}\n',
      '--mode',
      'nftables',
      '--delete',
    )
    expect(gone).toMatchObject({ status: 2, stdout: expect.stringMatching(/~ element service-ips/) })
    expect(
      await plan('apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: [{port: 0}]}\n'),
    ).toMatchObject({
      status: 1,
      stderr: expect.stringMatching(/change\.yaml:4: Service "x" is invalid: spec\.ports\[0\]\.port: Invalid value: 0/),
    })
  })

  it('exits with 1 for a file that it cannot read or that has nothing for a proxy', async () => {
    expect(await plan('apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n')).toMatchObject({
      status: 1,
      stderr: expect.stringMatching(
        /there is no Namespace or Service or EndpointSlice or Pod; \S+:2: Deployment default\/x is ignored/,
      ),
    })
    expect(await plan('a: [\n')).toMatchObject({ status: 1, stderr: expect.stringMatching(/change\.yaml:\d+: /) })
    expect(await sluice('plan', '-f', '/nowhere.yaml', '--manifests', directory(), '--node', 'a')).toMatchObject({
      status: 1,
      stderr: 'sluice plan: cannot read /nowhere.yaml: there is no such file or directory\n',
    })
  })

  it('reads directories, several files, lists, and says how to render a kustomization', async () => {
    const path = directory({ 'shop.yaml': shop })
    const items = [service(30081), slice(['10.1.0.77'])].map((text) => text.replaceAll('\n', '\n    '))
    const list = `apiVersion: v1\nkind: List\nitems:\n  - ${items.join('\n  - ')}`
    const kustomization = 'apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [list.yaml]\n'
    const folder = directory({ 'list.yaml': list, 'kustomization.yaml': kustomization, 'notes.txt': '{' })
    const more = `${directory({ 'x.json': '{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"x"}}' })}/x.json`
    const flags = ['--manifests', path, '--node', 'a', '--no-check']
    const { status, stdout } = await sluice('plan', '-f', folder, '-f', more, ...flags)
    expect(status).toBe(2)
    expect(stdout).toContain('tcp . 30081')
    expect(stdout).toContain('10.1.0.77')
    expect(stdout).toMatch(/kustomization\.yaml:2: Kustomization is ignored: render it first/)
    const twice = await sluice('plan', '-f', folder, '-f', `${folder}/list.yaml`, ...flags)
    expect(twice.stderr).toMatch(/list\.yaml:6: Service shop\/web is already in \S+list\.yaml:6/)
    const none = await sluice('plan', '-f', directory(), ...flags)
    expect(none.stderr).toMatch(/the directory has no \.yaml, \.yml or \.json file/)
  })
})
