// Makes one archive with the images that the cluster runs: those of upstream's tests, pause, CoreDNS and the real kube-proxy. The
// programs come from the cache and from this machine's Debian packages. test/cluster/build runs it: `tsx test-images.ts MODULE-FOLDER`.

import { execFileSync } from 'node:child_process'
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { FileTree } from '../../packaging/file-tree.ts'
import { type NamedImage, type PlatformImage, writeArchive } from '../../packaging/oci.ts'
import { imageArchive, kubernetesVersion, program } from './cache.ts'
import { imageNames } from './image-names.ts'

/** The folder of k8s.io/kubernetes in Go's module cache. */
const sources = process.argv[2] as string

/** busybox has these, too, but others behave as the tests expect: `name` or `name=what it is called in the image`. */
const programs = [
  ...['bash', 'dash=sh', 'hostname', 'wget', 'curl', 'dig', 'nslookup', 'nc.openbsd=nc', 'ip', 'ss', 'iperf', 'getent'],
  ...['conntrack', 'nft', 'ipset', 'iptables', 'iptables-save', 'iptables-restore'],
  ...['ip6tables', 'ip6tables-save', 'ip6tables-restore'],
]

async function makeArchive(): Promise<Buffer> {
  const names = imageNames()
  const base = await baseTree().toTar(0)
  const own = async (fill: (tree: FileTree) => void) => {
    const tree = new FileTree()
    fill(tree)
    return await tree.toTar(0)
  }
  const agnhost = await own((tree) => {
    tree.copy('agnhost', program('agnhost'), 0o755)
    tree.link('agnhost-2', 'agnhost')
    // A spec about resolv.conf runs a name server from this image.
    tree.copy('coredns', program('coredns'), 0o755)
    for (const name of ['localhost.crt', 'localhost.key'])
      tree.copy(name, join(sources, 'test/images/agnhost/porter', name))
    tree.add('uploads/.keep', '')
  })
  // OpenBSD's nc may end a connection with a reset, which the spec about invalid conntrack states takes for a failure.
  const busybox = await own((tree) => tree.link('usr/bin/nc', '/bin/busybox'))
  const single = (name: string, path: string) => own((tree) => tree.copy(path, program(name), 0o755))
  const pause = await own((tree) => tree.add('pause', compilePause(), 0o755))
  const images: NamedImage[] = []
  const add = (
    name: string,
    layers: readonly Uint8Array[],
    entrypoint: readonly string[],
    command?: readonly string[],
  ) => images.push({ name, platforms: [platform(layers, entrypoint, command)] })
  for (const name of names.agnhost) add(name, [base, agnhost], ['/agnhost'], ['pause'])
  for (const name of names.pause) add(name, [pause], ['/pause'])
  for (const name of names.shells) add(name, [base, busybox], [], ['sh'])
  const regression = 'regression-issue-74839'
  add(names.regression, [await single(regression, regression)], [`/${regression}`])
  add(names.coredns, [await single('coredns', 'coredns')], ['/coredns'])
  add(names.kubeProxy, [base, await single('kube-proxy', 'usr/local/bin/kube-proxy')], ['/usr/local/bin/kube-proxy'])
  return await writeArchive(images, 0)
}

function platform(
  layers: readonly Uint8Array[],
  entrypoint: readonly string[],
  command: readonly string[] = [],
): PlatformImage {
  const env = ['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin']
  return { architecture: 'amd64', layers, config: { entrypoint, command, user: '', env, labels: {} } }
}

/** busybox with the Debian programs in front of it. dash is the shell: busybox's prefers its own applets to PATH. */
function baseTree(): FileTree {
  const tree = new FileTree()
  for (const folder of ['tmp', 'root', 'run', 'home', 'proc', 'sys', 'dev', 'var/tmp', 'var/log', 'mnt'])
    tree.add(`${folder}/.keep`, '')
  tree.copy('bin/busybox', realpathSync('/bin/busybox'), 0o755)
  const replaced = new Set([...programs.map((entry) => entry.split('=').at(-1)), 'busybox', 'sh'])
  for (const applet of execFileSync('/bin/busybox', ['--list'], { encoding: 'utf8' }).trim().split('\n')) {
    if (!replaced.has(applet)) tree.link(`bin/${applet}`, '/bin/busybox')
  }
  for (const entry of programs) {
    const [source = '', name = source] = entry.split('=')
    addProgram(tree, source, `usr/bin/${name}`)
  }
  for (const shell of ['sh', 'bash']) tree.link(`bin/${shell}`, `/usr/bin/${shell}`)
  tree.link('usr/local/bin/iperf', '/usr/bin/iperf')
  const libraries = '/usr/lib/x86_64-linux-gnu'
  tree.copy('lib/x86_64-linux-gnu/libgcc_s.so.1', realpathSync('/lib/x86_64-linux-gnu/libgcc_s.so.1'), 0o755)
  for (const name of readdirSync(`${libraries}/xtables`)) {
    tree.copy(`${libraries}/xtables/${name}`.slice(1), join(libraries, 'xtables', name), 0o755)
  }
  const users = 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n'
  tree.add('etc/passwd', `${users}user-defined-in-image:x:1000:1000::/home:/bin/sh\n`)
  tree.add(
    'etc/group',
    'root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n',
  )
  tree.add('etc/nsswitch.conf', 'passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n')
  for (const name of ['services', 'protocols']) if (existsSync(`/etc/${name}`)) tree.copy(`etc/${name}`, `/etc/${name}`)
  return tree
}

/** Adds the program and the libraries that it is linked with. */
function addProgram(tree: FileTree, name: string, path: string): void {
  const file = realpathSync(execFileSync('which', [name], { encoding: 'utf8' }).trim())
  tree.copy(path, file, 0o755)
  for (const line of execFileSync('ldd', [file], { encoding: 'utf8' }).split('\n')) {
    const library = /(?:=> )?(\/\S+) \(/.exec(line)?.[1]
    if (library !== undefined) tree.copy(library.slice(1), realpathSync(library), 0o755)
  }
}

function compilePause(): Buffer {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-pause-'))
  try {
    const output = join(folder, 'pause')
    execFileSync('gcc', [
      '-Os',
      '-static',
      '-s',
      '-DVERSION=3',
      '-o',
      output,
      join(sources, 'build/pause/linux/pause.c'),
    ])
    return readFileSync(output)
  } finally {
    rmSync(folder, { recursive: true })
  }
}

mkdirSync(dirname(imageArchive), { recursive: true })
writeFileSync(`${imageArchive}.tmp`, await makeArchive())
renameSync(`${imageArchive}.tmp`, imageArchive)
console.log(`${imageArchive} (Kubernetes ${kubernetesVersion})`)
