// The folder of one running cluster: keys, logs and the nodes' own file systems. What a killed run left behind is removed first.

import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { cacheFolder } from './cache.ts'

const runs = join(cacheFolder, 'runs')

export interface RunFolder {
  readonly path: string
  /** Makes a cgroup for a node, in every hierarchy, and returns its path there. */
  createCgroup(node: string): string
  file(name: string): string
  remove(): void
}

/** The name of a run is the process that it belongs to, so that a later run sees whether it is still alive. */
export function createRunFolder(): RunFolder {
  mkdirSync(runs, { recursive: true })
  for (const name of readdirSync(runs)) if (!existsSync(`/proc/${name}`)) removeRun(name)
  const name = String(process.pid)
  removeRun(name)
  const path = join(runs, name)
  mkdirSync(path, { recursive: true })
  return {
    path,
    createCgroup: (node) => createCgroup(name, node),
    file: (base) => join(path, base),
    remove: () => removeRun(name),
  }
}

const cgroupName = (run: string): string => `sluice-cluster-${run}`

function removeRun(name: string): void {
  rmSync(join(runs, name), { recursive: true, force: true, maxRetries: 5 })
  for (const cgroup of cgroupsOf(name)) removeCgroup(cgroup)
}

/** A new cpuset is empty, and no process can be in it, unless it takes over what its parent has. */
function createCgroup(run: string, node: string): string {
  for (const cgroup of cgroupsOf(run)) {
    mkdirSync(cgroup, { recursive: true })
    const inherit = join(cgroup, 'cgroup.clone_children')
    if (existsSync(inherit)) writeFileSync(inherit, '1')
    for (const name of ['cpuset.cpus', 'cpuset.mems']) copyFromParent(cgroup, name)
    mkdirSync(join(cgroup, node), { recursive: true })
  }
  return `/${cgroupName(run)}/${node}`
}

function copyFromParent(cgroup: string, name: string): void {
  if (existsSync(join(cgroup, name))) writeFileSync(join(cgroup, name), readFileSync(join(cgroup, '..', name)))
}

/** The cgroup of a run in every hierarchy. There is only one with cgroup v2. */
function cgroupsOf(run: string): readonly string[] {
  const root = '/sys/fs/cgroup'
  const hierarchies = existsSync(join(root, 'cgroup.procs'))
    ? [root]
    : readdirSync(root).map((entry) => join(root, entry))
  return hierarchies.map((hierarchy) => join(hierarchy, cgroupName(run)))
}

/** A cgroup can be removed when it has no children and no processes. */
function removeCgroup(path: string): void {
  if (!existsSync(path)) return
  for (const entry of readdirSync(path, { withFileTypes: true })) {
    if (entry.isDirectory()) removeCgroup(join(path, entry.name))
  }
  rmdirSync(path)
}
