// Downloads packages of other Debian suites, with an apt that has its own sources and state, and names the cache for their content.

import { spawnSync } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { capture, lastLine } from './host-packages.ts'

export const cache = join(
  process.env.SLUICE_CACHE ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), 'sluice'),
  'vm',
)
const keyring = '/usr/share/keyrings/debian-archive-keyring.gpg'

/** Options for an apt that has its own sources and state, and uses the mirrors of this machine. */
export function privateApt(suite: string, work: string): readonly string[] {
  const state = join(work, 'apt')
  for (const name of ['lists/partial', 'cache/archives/partial']) mkdirSync(join(state, name), { recursive: true })
  const sites = (capture('apt-get', ['indextargets', '--format', '$(REPO_URI) $(CODENAME)']) ?? '').split('\n')
  const mirror = (codename: RegExp) => sites.find((site) => codename.test(site.split(' ')[1] ?? ''))?.split(' ')[0]
  const main = mirror(/^[a-z]+$/)
  const security = mirror(/-security$/)
  if (main === undefined) throw new Error('apt has no Debian mirror on this machine')
  const released = suite.replace(/-backports$/, '')
  const lines = [`${main} ${suite}`]
  if (released !== suite) lines.push(`${main} ${released}`)
  if (released !== 'sid' && security !== undefined) lines.push(`${security} ${released}-security`)
  writeFileSync(join(state, 'sources.list'), lines.map((line) => `deb [signed-by=${keyring}] ${line} main\n`).join(''))
  const options = {
    'Dir::Etc::sourcelist': join(state, 'sources.list'),
    'Dir::Etc::sourceparts': '-',
    'Dir::State::lists': join(state, 'lists'),
    'Dir::Cache': join(state, 'cache'),
    'APT::Sandbox::User': 'root',
    'APT::Architecture': 'amd64',
    'Acquire::Languages': 'none',
  }
  return ['-qq', ...Object.entries(options).flatMap(([name, value]) => ['-o', `${name}=${value}`])]
}

export function run(program: string, args: readonly string[], cwd?: string): void {
  const done = spawnSync(program, args, { encoding: 'utf8', ...(cwd === undefined ? {} : { cwd }) })
  if (done.status !== 0) throw new Error(`${program} ${args.at(-1)}: ${lastLine(done.stderr ?? '')}`)
}
