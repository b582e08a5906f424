// Shows everything that can be wrong with a proxy in a real terminal of 80 columns: in the live view of `sluice up`, in `status`, `explain`
// and `doctor`.

import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type PublishedProgram, publishProgram } from '../support/publish-program.ts'
import { TmuxTerminal, whyNoTmux } from '../support/tmux-terminal.ts'

const worker = join(import.meta.dirname, '../commands/sluice.worker.ts')
const missing = whyNoTmux()
if (missing !== undefined) process.stdout.write(`SKIPPED problems in a terminal: ${missing}\n`)

/** The second service wants the address of the first, and the third has more ports than the limit allows. */
const manifests = `apiVersion: v1
kind: Service
metadata: {name: first}
spec: {clusterIP: 10.96.0.60, externalIPs: [198.18.0.7], ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: second}
spec: {clusterIP: 10.96.0.61, externalIPs: [198.18.0.7], ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: wide}
spec: {clusterIP: 10.96.0.62, ports: [{name: a, port: 80}, {name: b, port: 81}, {name: c, port: 82}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: first-1, labels: {kubernetes.io/service-name: first}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.9.0.11]}, {addresses: [10.9.0.12]}]
`
const limits = 'apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\nlimits: {portsPerService: 2}\n'

describe.skipIf(missing !== undefined)('what is wrong, on 80 columns', () => {
  const space = `sluice-wrong-${process.pid}`
  const folder = mkdtempSync(join(tmpdir(), 'sluice-wrong-'))
  const directory = join(folder, 'manifests')
  const socket = `/run/sluice/${space}.sock`
  let published: PublishedProgram
  let program = ''
  let up: TmuxTerminal
  let other: TmuxTerminal

  beforeAll(async () => {
    published = await publishProgram(worker)
    program = published.command.join(' ')
    mkdirSync(directory)
    writeFileSync(join(directory, 'shop.yaml'), manifests)
    writeFileSync(join(folder, 'sluice.conf'), limits)
    execFileSync('ip', ['netns', 'add', space])
    const links = ['link set lo up', 'link add eth0 type veth peer name eth1', 'link set eth1 up', 'link set eth0 up']
    const routes = ['addr add 192.168.44.5/24 dev eth0', 'route add default dev eth0']
    execFileSync('ip', ['-n', space, '-batch', '-'], { input: [...links, ...routes].join('\n') })
    up = new TmuxTerminal(80, 24)
    const command = `${program} up --manifests ${directory} --port 0 --node ${space}`
    up.type(`SLUICE_CONFIG=${folder}/sluice.conf ip netns exec ${space} ${command}; echo "status=$?"`)
    await up.shows('Ctrl-C stops it')
    // Wide output must be wrapped by the command, not by the terminal: only then the terminal has to scroll back.
    other = new TmuxTerminal(80, 100)
  })
  afterAll(async () => {
    up.press('q')
    await up.shows(/status=\d/).finally(() => up.close())
    other.close()
    published.remove()
    execFileSync('ip', ['netns', 'del', space])
    rmSync(folder, { recursive: true, force: true })
  })

  it('is counted on the introduction of sluice up, and listed in the view', async () => {
    await up.shows('p problems (2)')
    up.press('Enter')
    await up.shows(/^! default\/wide \(IPv4\) is quarantined after \d+ attempts?: service default.*…$/m)
    await up.shows(/^! 198\.18\.0\.7:80\/tcp is claimed by default\/second, but is held by service defaul…$/m)
    await up.shows(/^ !default\/second /m)
    await up.shows(/^ !default\/wide .*quarantined: service default/m)
  })

  it('shows a broken manifest in the view until it is mended', async () => {
    writeFileSync(join(directory, 'broken.yaml'), 'kind: [\n')
    await up.shows(/^! invalid manifest broken\.yaml:2: Flow sequence/m)
    up.press('p')
    await up.shows('Problems (3)')
    // Unlike in the list, nothing is cut here.
    await up.shows(/the\s+objects\s+of\s+its\s+last\s+valid\s+content\s+stay\n! 198/)
    await up.shows(/limits\.portsPerService\s+allows\s+\(2\);\s+raise\s+the\s+limit/)
    up.press('Escape')
    await up.shows('p problems (3)')
    rmSync(join(directory, 'broken.yaml'))
    await up.shows('p problems (2)')
    expect(up.lines().join('\n')).not.toContain('! invalid manifest')
  })

  it('is the page of the service that has the problem', async () => {
    up.press('End', 'Enter')
    await up.shows(/default\/wide/)
    await up.shows(/quarantined: service default\/wide has 3 ports/)
    up.press('Escape', 'Home')
    await up.shows(/^> default\/first/m)
  })

  it.each([
    ['status', 3, /^default\/second +IPv4 +1 +0 +2\/2 +address not available:$/m],
    ['explain first', 0, /^ {2}10\.9\.0\.12:8080 +- +50\.0% +the client +ready$/m],
    ['explain second', 0, /claimed|held by service/],
    ['doctor', 3, /^problem +quarantine +default\/wide: service/m],
  ] as const)('fits with sluice %s: the terminal wraps no line', async (command, status, expected) => {
    other.type(`clear; ${program} ${command} --socket ${socket}; echo "status=$?"`)
    await other.shows(`status=${status}`)
    await other.shows(expected)
    // Commands to copy are the exception: a break would make them wrong.
    const wide = other.joinedLines().filter((line) => line.length > 80 && !/^ +(\$|->) /.test(line))
    expect(wide).toEqual([])
  })
})
