import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { manPages } from '../../packaging/man-pages.ts'
import { formatSchema, formatSchemaDocs } from '../../src/commands/answers/answer-schema.ts'
import { formatParagraph, formatTable } from '../../src/commands/answers/table.ts'
import { formatCommandDocs, formatOverview } from '../../src/commands/command-list.ts'
import { openTerminal } from '../../src/commands/open-terminal.ts'
import { sourceAddress } from '../../src/commands/sources/own-addresses.ts'
import { formatAnswer } from '../../src/commands/terminal.ts'
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
      [['explain', 'a/b/c', '--manifests', directory()], 'is none of ADDRESS:PORT, :NODEPORT'],
      [['up', '--mode', 'userspace', '--port', '70000'], '--port: given "70000", allowed: a number from 0 to 65535'],
      [['up', '--mode', 'userspace', '--address', 'here'], '--address: given "here", allowed: an IP address'],
      [['up', '--mode', 'userspace', '--node-address', '1.2.3'], '--node-address: given "1.2.3"'],
      [['up', '--mode', 'userspace', '--service-cidr', '10.0.0.0/8,11.0.0.0/8'], 'one of each family'],
      [['up', '--mode', 'userspace', '--cluster-cidr', '10.0.0.0'], '--cluster-cidr: given "10.0.0.0"'],
      [['up', '--mode', 'userspace', '--manifests', '/nowhere'], '--manifests: given "/nowhere", allowed: a directory'],
      [['up', '--mode', 'userspace', '--node', 'a b'], '--node: given "a b"'],
      [
        ['up', '--mode', 'userspace', '--service-node-port-range', '80'],
        '--service-node-port-range: given "80", must be',
      ],
      [
        ['up', '--mode', 'userspace', '--state', '/dev/null/x', '--node-address', '10.0.0.1'],
        'cannot create /dev/null/x',
      ],
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
    await expect(await formatCommandDocs()).toMatchFileSnapshot('../../docs/commands.md')
  })

  it('has a man page per command in the npm package', async () => {
    const { man } = JSON.parse(readFileSync('package.json', 'utf8')) as { man: readonly string[] }
    expect([...man].sort()).toEqual([...(await manPages()).keys()].sort().map((name) => `dist/man/${name}`))
  })

  it('has no status for an unknown command', async () => {
    expect((await sluice('dance')).status).toBeUndefined()
    expect((await sluice('help', 'dance')).status).toBeUndefined()
  })

  it('prints the help of a command after help, and the overview without a name', async () => {
    expect((await sluice('help', 'explain')).stdout).toBe((await sluice('explain', '--help')).stdout)
    expect((await sluice('help')).stdout).toBe(formatOverview())
  })

  it('equals docs/json.md and its schema', async () => {
    await expect(formatSchemaDocs()).toMatchFileSnapshot('../../docs/json.md')
    await expect(formatSchema()).toMatchFileSnapshot('../../docs/schema/sluice-v1.schema.json')
  })
})

describe('the address of this machine', () => {
  it('is its source address towards another host, or undefined without a route', async () => {
    expect(await sourceAddress(4, '127.0.0.1')).toBe('127.0.0.1')
    // The kernel refuses broadcast without SO_BROADCAST, as it refuses an address without a route.
    expect(await sourceAddress(4, '255.255.255.255')).toBeUndefined()
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
        { paint: (_, text) => text, columns: 80 },
      ),
    ).toBe(`A          B\nlong cell  ${red}\nx          y\n`)
    expect(formatTable(['A'], [], { paint, columns: 80 })).toBe('')
  })

  it('are YAML that YAML 1.1 parsers understand too', () => {
    expect(formatAnswer({ kind: 'Test', word: 'no', hash: '0000001e5' }, 'yaml', () => '')).toBe(
      'apiVersion: sluice/v1\nkind: Test\nword: "no"\nhash: "0000001e5"\n',
    )
  })

  it('wrap the last column in a narrow terminal, and are stacked where even that does not fit', () => {
    const plain = { paint: (_: string, text: string) => text }
    const rows = [['shop/web', 'IPv4', 'address not available: 10.0.0.1:80/tcp is held by service shop/other']]
    const heads = ['SERVICE', 'FAMILY', 'STATE']
    const wrapped = formatTable(heads, rows, { ...plain, columns: 50 })
    expect(wrapped.split('\n')[0]).toBe('SERVICE   FAMILY  STATE')
    expect(wrapped.split('\n').every((line) => line.length <= 50)).toBe(true)
    expect(wrapped.replaceAll(/\s+/g, ' ')).toContain('address not available: 10.0.0.1:80/tcp is held by service')
    const stacked = formatTable(heads, rows, { ...plain, columns: 30 })
    expect(stacked.split('\n').slice(0, 2)).toEqual(['shop/web', '    family  IPv4'])
    expect(stacked.split('\n').every((line) => line.length <= 30)).toBe(true)
    const wide = { ...plain, columns: Number.POSITIVE_INFINITY }
    expect(formatTable(heads, rows, wide).trimEnd().split('\n')).toHaveLength(2)
  })

  it('keep the colour of a cell on each of its lines', () => {
    const red = `\x1b[31m${'very long words '.repeat(5).trim()}\x1b[0m`
    const terminal = { paint: (_: string, text: string) => text, columns: 40 }
    const lines = formatTable(['A', 'B'], [['x', red]], terminal)
      .trimEnd()
      .split('\n')
      .slice(1)
    expect(lines.length).toBeGreaterThan(1)
    for (const line of lines)
      expect([
        line.includes('\x1b[31mvery') || line.includes('\x1b[31mlong') || line.includes('\x1b[31mwords'),
        line.endsWith('\x1b[0m'),
      ]).toEqual([true, true])
    const mark = '\x1b[31m!\x1b[0m word'
    expect(formatParagraph(`${mark} ${'word '.repeat(20)}`, terminal).startsWith(mark)).toBe(true)
  })

  it('have no colours with NO_COLOR', () => {
    expect(openTerminal({ NO_COLOR: '1', TERM: 'xterm' }).paint('red', 'x')).toBe('x')
  })
})
