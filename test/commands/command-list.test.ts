import { spawnSync } from 'node:child_process'
import { describe, expect, it } from 'vitest'
import { formatCommandDocs, formatOverview } from '../../src/commands/command-list.ts'
import { sourceAddress } from '../../src/commands/sources/own-addresses.ts'
import { formatAnswer, formatTable, openTerminal } from '../../src/commands/terminal.ts'
import { directory, sluice } from './run-command.ts'

const names = ['up', 'explain', 'plan', 'status', 'doctor', 'cleanup', 'completion']

describe('the command table', () => {
  it.each(names)('%s has a help text with a usage line and examples', async (name) => {
    const { status, stdout } = await sluice(name, '--help')
    expect(status).toBe(0)
    expect(stdout).toContain(`sluice ${name}`)
    expect(stdout.split('Examples:')[1]).toMatch(/\S/)
    expect(formatOverview()).toContain(`  ${name.padEnd(12)} `)
  })

  it('prints an error in one line, and exits with 1', async () => {
    const wrong = [
      [['explain'], 'an argument is missing'],
      [['explain', 'a', 'b'], 'unexpected argument "b"'],
      [['status', '--colour'], 'unknown flag --colour'],
      [['status', '-o', 'xml'], '--output: given "xml", allowed: table, json, yaml'],
      [['status', '--output'], '--output needs a value'],
      [['cleanup', '--dry-run=1'], '--dry-run takes no value'],
      [['plan'], 'no file is given: add -f FILE'],
      [['up', '--once'], '--once needs --demo'],
      [['completion', 'tcsh'], 'no completion for "tcsh"'],
      [['status', '--socket', '/nowhere/x.sock'], 'the socket does not exist'],
      [['explain', 'x/y', '--manifests', '/nowhere'], '/nowhere is not a directory'],
      [['explain', '10.0.0.1:80', '--from', 'mars', '--manifests', directory()], '"mars" is not an address'],
      [['explain', '10.0.0.1:99999', '--manifests', directory()], 'a port is a number from 1 to 65535'],
      [['explain', 'a/b/c', '--manifests', directory()], 'is neither ADDRESS:PORT[/tcp|udp|sctp] nor NAMESPACE/NAME'],
      [['up', '--mode', 'userspace', '--port', '70000'], '--port: given "70000", allowed: a number from 0 to 65535'],
      [['up', '--mode', 'userspace', '--address', 'here'], '--address: given "here", allowed: an IP address'],
      [['up', '--mode', 'userspace', '--node-address', '1.2.3'], '--node-address: given "1.2.3"'],
      [['up', '--mode', 'userspace', '--service-cidr', '10.0.0.0/8,11.0.0.0/8'], 'one of each family'],
      [['up', '--mode', 'userspace', '--cluster-cidr', '10.0.0.0'], '--cluster-cidr: given "10.0.0.0"'],
      [['up', '--mode', 'userspace', '--manifests', '/nowhere'], '--manifests: given "/nowhere", allowed: a directory'],
      [['up', '--mode', 'userspace', '--node', 'a b'], '--node: given "a b"'],
    ] as const
    for (const [argv, what] of wrong) {
      const { status, stdout, stderr } = await sluice(...argv)
      expect(status, argv.join(' ')).toBe(1)
      expect(stderr).toContain(what)
      expect(stderr.startsWith(`sluice ${argv[0]}: `)).toBe(true)
      expect(stderr.trimEnd().split('\n')).toHaveLength(1)
      expect(stdout).toBe('')
    }
  })

  it('equals docs/commands.md', async () => {
    await expect(formatCommandDocs()).toMatchFileSnapshot('../../docs/commands.md')
  })

  it('has no status for an unknown command', async () => {
    expect((await sluice('dance')).status).toBeUndefined()
  })
})

describe('the address of this machine', () => {
  it('is its source address towards another host, or undefined without a route', async () => {
    expect(await sourceAddress(4, '127.0.0.1')).toBe('127.0.0.1')
    // The kernel refuses broadcast without SO_BROADCAST, as it refuses an address without a route.
    expect(await sourceAddress(4, '255.255.255.255')).toBeUndefined()
  })
})

describe('completion', () => {
  it.each(['bash', 'zsh', 'fish'])('offers every command and its flags in %s', async (shell) => {
    const { stdout } = await sluice('completion', shell)
    for (const name of names) expect(stdout).toContain(name)
    expect(stdout).toContain(shell === 'fish' ? '-l dry-run' : '--dry-run')
    expect(stdout).not.toContain('__trial')
  })

  it('completes in a real bash', async () => {
    const { stdout } = await sluice('completion', 'bash')
    const ask = (words: string) =>
      spawnSync(
        'bash',
        [
          '-c',
          `${stdout}\nCOMP_WORDS=(${words}); COMP_CWORD=$((\${#COMP_WORDS[@]}-1)); _sluice; echo "\${COMPREPLY[@]}"`,
        ],
        {
          encoding: 'utf8',
        },
      ).stdout.trim()
    expect(ask('sluice ex')).toBe('explain')
    expect(ask('sluice explain --fr')).toBe('--from')
    expect(ask('sluice status -o js')).toBe('json')
    expect(ask('sluice up --mode ipv')).toBe('ipvs')
  })
})

describe('tables', () => {
  it('are as wide as their widest cells, without colours', () => {
    const paint = (_: string, text: string) => `\x1b[31m${text}\x1b[0m`
    const red = paint('', 'ok')
    expect(
      formatTable(
        ['A', 'B'],
        [
          ['long cell', red],
          ['x', 'y'],
        ],
        { paint: (_, text) => text },
      ),
    ).toBe(`A           B\nlong cell   ${red}\nx           y\n`)
    expect(formatTable(['A'], [], { paint })).toBe('')
  })

  it('are YAML that YAML 1.1 parsers understand too', () => {
    expect(formatAnswer({ snat: 'no', hash: '0000001e5' }, 'yaml', () => '')).toBe('snat: "no"\nhash: "0000001e5"\n')
  })

  it('have no colours with NO_COLOR', () => {
    expect(openTerminal({ NO_COLOR: '1', TERM: 'xterm' }).paint('red', 'x')).toBe('x')
  })
})
