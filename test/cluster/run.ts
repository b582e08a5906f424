// The command `npm run test:cluster`: brings up a whole cluster, installs a proxy, runs upstream's specs and our stories, and counts.
//
// [--short] [--stories] [--modes nftables,iptables,userspace] [--proxies sluice,kube-proxy] [--focus REGEXP] [--nodes 3] [--processes 6]

import { execFileSync } from 'node:child_process'
import { parseArgs } from 'node:util'
import { kubernetesVersion, whyNot } from './cache.ts'
import { regressions, saveColumn, writePage } from './conformance.ts'
import { installProxy, type Mode, type ProxyName, removeProxy } from './proxies.ts'
import { type RealCluster, startRealCluster } from './real-cluster.ts'
import { runSpecs, type Selection, type SpecResult } from './run-specs.ts'
import { makeSluiceImages, type SluiceImages } from './sluice-image.ts'
import { alone, escapeName, findExpectedFailure, focus, shortList, skips } from './spec-lists.ts'
import { listStories, playStory } from './stories.ts'
import { isWorse, saveStory } from './story-results.ts'

const { values } = parseArgs({
  options: {
    short: { type: 'boolean', default: false },
    modes: { type: 'string', default: 'nftables' },
    proxies: { type: 'string', default: 'sluice' },
    focus: { type: 'string' },
    nodes: { type: 'string', default: '3' },
    processes: { type: 'string', default: '6' },
    stories: { type: 'boolean', default: false },
  },
})

const modes = values.modes.split(',') as Mode[]
/** The image for nftables mode has no other programs; the chart chooses it by the mode. */
const imagesOf = (used: readonly Mode[]) => [
  ...new Set(used.map((mode) => (mode === 'nftables' ? 'sluice:nftables' : 'sluice'))),
]
const processes = Number(values.processes)
/** The last commit that changed the proxy. */
const sourcesCommit = execFileSync('git', ['log', '-1', '--format=%h', '--', 'src'], { encoding: 'utf8' }).trim()
const total = { passed: 0, failed: 0, skipped: 0 }
const began = performance.now()
const say = (text: string) => console.log(`[${Math.round((performance.now() - began) / 1000)} s] ${text}`)

interface Run {
  readonly cluster: RealCluster
  readonly sluice: SluiceImages
}

async function main(): Promise<void> {
  say(`making the images, and starting a cluster of ${values.nodes} nodes`)
  // Stories change the mode.
  const making = makeSluiceImages(imagesOf(values.stories ? ['nftables', 'iptables'] : modes))
  making.catch(() => {}) // the error is thrown where it is awaited
  const cluster = await startRealCluster(Number(values.nodes))
  try {
    say('the cluster runs')
    const sluice = await making
    for (const archive of sluice.archives) await cluster.importArchive(archive)
    say(`Sluice's images are on the nodes; logs are in ${cluster.run.path}`)
    for (const mode of modes) {
      for (const proxy of values.proxies.split(',') as ProxyName[]) {
        if (proxy === 'kube-proxy' && mode === 'userspace') continue // it has no such mode
        await startProxy(cluster, proxy, mode)
        if (values.stories) await runStories({ cluster, sluice }, proxy, mode)
        else await runAllSpecs({ cluster, sluice }, proxy, mode)
        await removeProxy(cluster, proxy, sluice.executable)
      }
    }
  } finally {
    say('removing the cluster')
    await cluster.end()
  }
}

async function startProxy(cluster: RealCluster, proxy: ProxyName, mode: Mode): Promise<void> {
  say(`installing ${proxy}, ${mode}`)
  await installProxy(cluster, proxy, mode)
  await cluster.kubectl(['-n', 'kube-system', 'rollout', 'status', 'deployment/coredns', '--timeout=180s'], {
    limitMs: 200_000,
  })
  say(`${proxy} serves in ${mode} mode`)
}

async function runAllSpecs(run: Run, proxy: ProxyName, mode: Mode): Promise<void> {
  const { cluster } = run
  const from = performance.now()
  const specs = await runSelection(cluster, `${proxy}-${mode}`)
  const minutes = (performance.now() - from) / 60_000
  const bad = proxy === 'sluice' ? await compare(run, mode, specs) : []
  report(specs, bad, `${proxy} ${mode}, ${minutes.toFixed(1)} min`)
  if (values.short) return
  const version = proxy === 'sluice' ? sourcesCommit : kubernetesVersion
  const date = new Date().toISOString().slice(0, 10)
  const worse = bad.map(({ name }) => name)
  const failed = specs.filter(({ state }) => state === 'failed').map(({ name }) => name)
  const compared = proxy === 'sluice' ? failed.filter((name) => !worse.includes(name)) : []
  saveColumn({ proxy, mode, version, date, nodes: cluster.nodes.length, minutes, specs, worse, compared })
  writePage()
}

async function runSelection(cluster: RealCluster, label: string): Promise<readonly SpecResult[]> {
  const run = (name: string, chosen: Selection) => runSpecs(cluster, `${label}-${name}`, chosen)
  if (values.focus !== undefined) return await run('focus', { focus: [values.focus], skip: [], processes })
  if (values.short) return await run('short', { focus: shortList, skip: [], processes })
  const main = await run('main', { focus: [focus], skip: skips.map(({ pattern }) => pattern), processes })
  const others = await run('alone', { focus: [...alone], skip: [], processes: 1 })
  return [...main, ...others].sort((a, b) => (a.name < b.name ? -1 : 1))
}

/** Returns the failures of Sluice that kube-proxy does not have in the same cluster. */
async function compare(
  { cluster, sluice }: Run,
  mode: Mode,
  specs: readonly SpecResult[],
): Promise<readonly SpecResult[]> {
  const failed = specs.filter(({ name, state }) => state === 'failed' && findExpectedFailure(mode, name) === undefined)
  if (failed.length === 0) return []
  say(`${failed.length} failed with Sluice; kube-proxy runs them`)
  await removeProxy(cluster, 'sluice', sluice.executable)
  await installProxy(cluster, 'kube-proxy', mode === 'userspace' ? 'nftables' : mode)
  const chosen = { focus: failed.map(({ name }) => escapeName(name)), skip: [], processes: 2 }
  const theirs = await runSpecs(cluster, `compared-${mode}`, chosen)
  await removeProxy(cluster, 'kube-proxy', sluice.executable)
  await installProxy(cluster, 'sluice', mode)
  return regressions(failed, theirs)
}

/** `--focus` chooses stories, too. */
async function runStories({ cluster, sluice }: Run, proxy: ProxyName, mode: Mode): Promise<void> {
  const chosen = new RegExp(values.focus ?? '')
  for (const [story, about] of listStories(proxy, mode).filter(([{ name }]) => chosen.test(name))) {
    const result = await playStory(story, { cluster, proxy, mode, executable: sluice.executable })
    const counted = { ...result, proxy: about }
    saveStory(counted)
    writePage()
    const worse = isWorse(counted)
    say(
      `${worse ? 'FAILED ' : ''}${proxy} ${mode}: ${story.name}: ${result.failed} of ${result.made} connections failed within ${result.span} s`,
    )
    for (const [why, count] of Object.entries(result.reasons)) console.log(`  ${count} × ${why}`)
    total[worse ? 'failed' : 'passed']++
  }
}

function report(specs: readonly SpecResult[], bad: readonly SpecResult[], label: string): void {
  const by = (state: SpecResult['state']) => specs.filter((spec) => spec.state === state)
  for (const { name, message } of by('failed')) console.log(`FAILED ${name}\n  ${message.slice(0, 1000)}`)
  for (const { name } of bad) console.log(`kube-proxy passes what Sluice fails: ${name}`)
  say(`${label}: ${by('passed').length} passed, ${by('failed').length} failed, ${by('skipped').length} skipped`)
  total.passed += by('passed').length
  total.failed += bad.length
  total.skipped += by('skipped').length + by('failed').length - bad.length
}

const reason = whyNot()
if (reason !== undefined) console.log(`SKIPPED tier cluster: ${reason}`)
else {
  await main()
  const parts = [`${total.failed} failed`, `${total.passed} passed`, `${total.skipped} skipped`]
  console.log(`      Tests  ${parts.join(' | ')} (${total.passed + total.failed + total.skipped})`)
  process.exit(total.failed > 0 || total.passed === 0 ? 1 : 0)
}
