// Keeps the results of the stories in the folder results, and makes the table of docs/conformance.md from them.

import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { formatTable } from './markdown.ts'
import type { ProxyName } from './proxies.ts'
import type { StoryResult } from './stories.ts'

const path = join(import.meta.dirname, 'results', 'stories.json')

export function readStories(): readonly StoryResult[] {
  return existsSync(path) ? (JSON.parse(readFileSync(path, 'utf8')) as readonly StoryResult[]) : []
}

const isSame = (a: StoryResult, b: StoryResult): boolean =>
  a.name === b.name && a.proxy === b.proxy && a.mode === b.mode

export function saveStory(result: StoryResult): void {
  mkdirSync(dirname(path), { recursive: true })
  const others = readStories().filter((known) => !isSame(known, result))
  writeFileSync(path, JSON.stringify([...others, result], undefined, 1).concat('\n'))
}

/** A story fails if connections fail that do not fail with kube-proxy. Without a result of kube-proxy none may fail. */
export function isWorse(result: StoryResult): boolean {
  if (result.proxy !== 'sluice' || result.failed === 0) return false
  const theirs = readStories().find(
    ({ name, mode, proxy }) => name === result.name && mode === result.mode && proxy === 'kube-proxy',
  )
  return theirs === undefined || theirs.failed === 0
}

export function renderStories(): string {
  const all = readStories()
  if (all.length === 0) return 'They have not been run.\n'
  const rows = [...new Set(all.map(({ name, mode }) => `${mode}\n${name}`))].sort()
  const cell = (row: string, wanted: ProxyName) => {
    const found = all.find(({ name, mode, proxy }) => `${mode}\n${name}` === row && proxy === wanted)
    if (found === undefined) return ''
    const span = found.failed > 0 ? ` within ${found.span} s` : ''
    return `${found.failed} of ${found.made} failed${span}`
  }
  const lines = rows.map((row) => [...row.split('\n'), cell(row, 'sluice'), cell(row, 'kube-proxy')])
  return `Clients in a pod and on a node open connections to a cluster IP, and one outside of the cluster to the node ports of two nodes, ten a second each, while this
happens. The web servers behind the service serve for 15 s after SIGTERM, so that a failed connection is the network's fault.

${formatTable(['mode', 'what happens', 'Sluice', 'kube-proxy'], lines)}
`
}
