// Scripts in front of iptables-restore that the proxy under test finds first: one refuses some input, the other records it.

import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { folderFirst } from '../support/program-folders.ts'
import type { Flavour } from './iptables-holdings.ts'
import { type NodeNetwork, nodeIp } from './node-network.ts'

/**
 * Returns an environment whose restore program refuses input that contains `word`. It reports only that the table could not be committed, as
 * the legacy flavour does when the kernel refuses. The kernel itself hardly ever refuses objects that an API server accepts.
 */
export async function refuseRestores(
  network: NodeNetwork,
  flavour: Flavour,
  word: string,
): Promise<{ env: NodeJS.ProcessEnv; end(): void }> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-refusing-'))
  const program = `iptables-${flavour}-restore`
  const real = (await network.run(`command -v ${program}`)).trim()
  const script = `#!/bin/sh
text=$(cat; echo .)
case "$text" in *${word}*) echo "${program}: line $(printf %s "$text" | grep -n COMMIT | tail -1 | cut -d: -f1) failed" >&2; exit 1;; esac
printf %s "\${text%.}" | exec ${real} "$@"
`
  writeFileSync(join(folder, program), script, { mode: 0o755 })
  return { env: folderFirst(folder), end: () => rmSync(folder, { recursive: true }) }
}

/** Returns an environment whose restore program records how many sockets listen on the node, and to which ports its input leads. */
export async function recordRestores(
  network: NodeNetwork,
  flavour: Flavour,
): Promise<{ env: NodeJS.ProcessEnv; records(): readonly string[]; end(): void }> {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-recording-'))
  const program = `iptables-${flavour}-restore`
  const real = (await network.run(`command -v ${program}`)).trim()
  const script = `#!/bin/sh
text=$(cat; echo .)
ports=$(printf %s "$text" | grep -o 'to-destination [0-9.]*:[0-9]*' | sed 's/.*://' | sort -u | tr '\\n' ' ')
echo "$(ss -Hlnt src ${nodeIp} | wc -l) listeners, leads to $ports" >> ${folder}/records
printf %s "\${text%.}" | exec ${real} "$@"
`
  writeFileSync(join(folder, program), script, { mode: 0o755 })
  return {
    env: folderFirst(folder),
    records: () => readFileSync(join(folder, 'records'), 'utf8').trim().split('\n'),
    end: () => rmSync(folder, { recursive: true }),
  }
}
