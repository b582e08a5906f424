// Completes in real shells, as a person does with the Tab key: bash and zsh on a terminal of their own, and fish by its own question.

import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { inside, machine, publish, start, undo } from './up-process.ts'

const has = (shell: string) => spawnSync('which', [shell]).status === 0
for (const shell of ['zsh', 'fish'])
  if (!has(shell)) process.stdout.write(`SKIPPED completion in ${shell}: not installed\n`)

let folder = ''

/** Makes the folder that is first on the PATH. Completion asks the real program; what a person runs is only printed. */
async function prepare(): Promise<void> {
  folder = mkdtempSync(join(tmpdir(), 'sluice-completion-'))
  undo.push(() => rmSync(folder, { recursive: true, force: true }))
  const { program } = await publish()
  const real = program.map((word) => `'${word}'`).join(' ')
  for (const name of ['sluice', 'kube-proxy']) {
    const script = `#!/bin/sh\nif [ "$1" = __complete ]; then exec ${real} "$@"; fi\necho "RAN ${name} $*"\n`
    writeFileSync(join(folder, name), script)
    chmodSync(join(folder, name), 0o755)
  }
  for (const shell of ['bash', 'zsh', 'fish']) {
    const [node = '', ...args] = program
    writeFileSync(join(folder, `script.${shell}`), execFileSync(node, [...args, 'completion', shell]))
  }
}

/** Runs a proxy with the services default/web and default/dns, and returns its socket. */
async function startProxy(): Promise<string> {
  const space = await machine()
  const run = start(['up', '--manifests', 'examples/standalone', '--node', 'completed'], inside(space))
  await run.until('Ctrl-C stops')
  return '/run/sluice/completed.sock'
}

const environment = (socket: string) => ({
  ...process.env,
  PATH: `${folder}:${process.env.PATH}`,
  SLUICE_ADMIN_SOCKET: socket,
  PS1: '$ ',
})

/** Types into a shell on a terminal. `script` makes the terminal. Returns what the commands printed. */
async function type(shell: readonly string[], socket: string, lines: readonly string[]): Promise<readonly string[]> {
  const child = spawn('script', ['-qfc', shell.join(' '), '/dev/null'], {
    env: { ...environment(socket), TERM: 'dumb' },
    stdio: ['pipe', 'pipe', 'ignore'],
  })
  undo.push(() => child.kill('SIGKILL'))
  let text = ''
  child.stdout.setEncoding('utf8').on('data', (chunk) => {
    text += chunk
  })
  const ran = () => [...text.matchAll(/^RAN (.*?)\s*\r?$/gm)].map(([, words = '']) => words)
  const waitFor = async (isDone: () => boolean) => {
    for (let i = 0; i < 400 && !isDone(); i++) await new Promise((resolve) => setTimeout(resolve, 50))
    if (!isDone()) throw new Error(`the shell shows:\n${text}`)
  }
  for (const [number, line] of lines.entries()) {
    child.stdin.write(`echo READ''Y${number}\n`)
    await waitFor(() => text.includes(`READY${number}`))
    child.stdin.write(line)
    // The shell reads the rest only after the completion, which takes as long as the program.
    child.stdin.write('\n')
    if (line.includes('sluice ') || line.includes('kube-proxy ')) await waitFor(() => ran().length >= number)
  }
  child.stdin.end('exit\n')
  return ran()
}

const typed = [
  'sluice explain def\td\t',
  'sluice stat\t--sort\t',
  'sluice status -o js\t',
  'sluice up --mode=ipv\t',
  'kube-proxy --proxy-m\t',
]
const wanted = [
  'sluice explain default/dns',
  'sluice status --sort-by',
  'sluice status -o json',
  'sluice up --mode=ipvs',
  'kube-proxy --proxy-mode',
]

const ask = (socket: string, line: string) =>
  execFileSync('fish', ['--no-config', '-c', `source ${folder}/script.fish; complete -C '${line}'`], {
    encoding: 'utf8',
    env: environment(socket),
  })
    .trim()
    .split('\n')

describe('completion', () => {
  it('works in bash, zsh and fish', async () => {
    await prepare()
    const socket = await startProxy()
    const bash = [`source ${folder}/script.bash`, ...typed]
    expect(await type(['bash', '--norc', '--noprofile', '-i'], socket, bash), 'bash').toEqual(wanted)
    if (has('zsh')) {
      const setup = `autoload -Uz compinit; compinit -u -d ${folder}/dump; source ${folder}/script.zsh`
      expect(await type(['zsh', '-f', '-i'], socket, [setup, ...typed]), 'zsh').toEqual(wanted)
    }
    if (!has('fish')) return
    expect(ask(socket, 'sluice explain ')).toEqual(['default/dns', 'default/kubernetes', 'default/web'])
    expect(ask(socket, 'sluice stat')[0]).toMatch(/^status\tcompare/)
    expect(ask(socket, 'sluice up --mode=ipv')).toEqual(['--mode=ipvs'])
    expect(ask(socket, 'kube-proxy --proxy-m')[0]).toMatch(/^--proxy-mode\t/)
    expect(ask(socket, 'sluice plan -f pack')).toContain('packaging/')
  }, 300_000)
})
