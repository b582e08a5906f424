// Drives the live view in a real terminal, tmux: keys, sizes, what it shows, and the state in which it leaves the terminal.

import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { lockDemo } from '../support/demo-lock.ts'
import { TmuxTerminal, whyNoTmux } from '../support/tmux-terminal.ts'
import { until } from '../support/until.ts'

lockDemo()

const root = join(import.meta.dirname, '../..')
const worker = join(root, 'test/commands/sluice.worker.ts')
const program = `${process.execPath} --import tsx ${worker}`
const socket = '/run/sluice/sluice-node1.sock'
const missing = whyNoTmux()
if (missing !== undefined) process.stdout.write(`SKIPPED live view in a terminal: ${missing}\n`)

describe.skipIf(missing !== undefined)('the live view in a terminal', () => {
  let demo: TmuxTerminal
  let top: TmuxTerminal
  const folder = mkdtempSync(join(tmpdir(), 'sluice-view-'))
  const pidFile = join(folder, 'pid')

  beforeAll(async () => {
    demo = new TmuxTerminal(80, 24)
    // iptables mode, because other programs may change its rules on every kernel.
    demo.type(`${program} up --demo --mode iptables --scale 2; echo "status=$?"`)
    await demo.shows('Try, in another terminal')
    top = new TmuxTerminal(80, 24)
  })
  afterAll(async () => {
    demo.press('q')
    await demo.shows(/status=\d/).finally(() => demo.close())
    top.close()
    rmSync(folder, { recursive: true, force: true })
  })

  it('shows both endpoints of the demo on 80 columns, after the introduction', async () => {
    // The introduction may be on the screen before the terminal has changed its mode.
    await expect.poll(() => demo.mode(), { timeout: 10_000 }).toBe('1 0')
    demo.press('Enter')
    await demo.shows(/work\/saythx-redis +10\.103\.193\.175:6379 :31269 {2}10\.32\.0\.2 \(\d+\) 10\.32\.1\.2 \(\d+\)/)
    expect(demo.lines().at(-1)).toMatch(/^q quit {2}\? help .*1 one pod {2}2 two pods/)
    demo.press('1')
    await demo.shows(/:31269 {2}10\.32\.0\.2 \(\d+\)$/m)
    await demo.shows('IPv4 objects changed: put')
  })

  it('attaches to a running proxy: scrolls, filters, sorts, opens a service and helps', async () => {
    top.type(`clear; ${program} top --socket ${socket}; echo "status=$?"`)
    await top.shows(/^> default\/hello/m)
    top.press('Down', 'Down', 'Down')
    await top.shows(/^> work\/saythx-redis/m)
    top.press('Home')
    await top.shows(/^> default\/hello/m)
    top.press('/', 'r', 'e', 'd')
    await top.shows('filter: red_')
    await until('the others are gone', () => !/^[> ] default\/hello/m.test(top.lines().join('\n')) || undefined)
    top.press('Enter', 'Enter')
    await top.shows('policy: internal cluster, external cluster')
    await top.shows('Recent changes (')
    await top.shows(/ago {2}IPv4 first sync/)
    top.press('Escape')
    await top.shows('/ filter "red" (Esc clears)')
    top.press('Escape', 's')
    await top.shows('s sort: connections')
    top.press('?')
    await top.shows('q, Ctrl-C')
    top.press('Escape')
    await top.shows('s sort: connections')
  })

  it('follows the size of the terminal', async () => {
    for (const [columns, rows] of [
      [40, 10],
      [120, 40],
      [20, 6],
      [80, 24],
    ] as const) {
      top.resize(columns, rows)
      await until(`the view has ${rows} rows`, () => {
        const lines = top.lines()
        return (lines.length === rows && lines.at(-1)?.startsWith('q quit') && lines[0]?.includes('node1')) || undefined
      })
    }
  })

  it('says that another program changed the rules, and that this is why there was a sync', async () => {
    execFileSync('ip', ['netns', 'exec', 'sluice-node1', 'iptables', '-t', 'nat', '-F', 'KUBE-SERVICES'])
    await top.shows(/^! \d+s ago rules \(IPv4\) were changed by /m)
    await top.shows('IPv4 another program changed our rules')
    top.press('p')
    await top.shows('Problems (1)')
    top.press('Escape')
  })

  it('gives the terminal back at q, Ctrl-C and SIGTERM', async () => {
    const again = async () => {
      top.type(`clear; sh -c 'echo $$ > ${pidFile}; exec ${program} top --socket ${socket}'; echo "status=$?"`)
      await top.shows('default/hello')
      expect(top.mode()).toBe('1 0')
    }
    top.press('q')
    await top.shows(/status=0/)
    expect(top.mode()).toBe('0 1')
    await again()
    top.press('C-c')
    await top.shows(/status=0/)
    expect(top.mode()).toBe('0 1')
    await again()
    process.kill(Number(readFileSync(pidFile, 'utf8')), 'SIGTERM')
    await top.shows(/status=0/)
    expect(top.mode()).toBe('0 1')
    // The terminal echoes what is typed again.
    top.type('echo restored')
    await top.shows(/^restored$/m)
  })

  it.each([
    ['', /\d{4}-\d\d-\d\dT[\d:.]+Z IPv4 objects changed: put \d+/],
    [
      '-o json',
      /\{"apiVersion":"sluice\/v1","kind":"ProxyEvent","time":"\d{4}-\d\d-\d\dT[\d:.]+Z","event":\{"kind":"sync"/,
    ],
  ])('prints one line per event on a pipe: top %s', async (flags, expected) => {
    top.type(`clear; ${program} top --socket ${socket} ${flags} | head -n 1`)
    let replicas = 1
    await until(
      'an event is printed',
      () => {
        replicas = 3 - replicas
        demo.press(String(replicas))
        return expected.test(top.lines().join('')) || undefined
      },
      { limitMs: 60_000, everyMs: 500 },
    )
    expect(top.mode()).toBe('0 1')
  })
})
