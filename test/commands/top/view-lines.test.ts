import { describe, expect, it } from 'vitest'
import type { ScreenSize } from '../../../src/commands/top/list-page.ts'
import { type LiveDocument, makeTable } from '../../../src/commands/top/live-document.ts'
import { formatScreen, measureView, type ViewContent } from '../../../src/commands/top/view-lines.ts'
import { initialState, settle, type ViewState } from '../../../src/commands/top/view-state.ts'
import { demo, document, many, now, port, report, service, summary } from './live-builders.ts'

const noExtras = { notes: [], introduction: [], hints: [] }

const content = (shown: LiveDocument, state: ViewState, fields: Partial<ViewContent> = {}): ViewContent => ({
  table: makeTable(shown, state.sort, state.filter),
  history: undefined,
  extras: noExtras,
  warning: '',
  ...fields,
})

function draw(
  shown: LiveDocument,
  size: ScreenSize,
  given: Partial<ViewState> = {},
  fields: Partial<ViewContent> = {},
) {
  const state = { ...initialState, ...given }
  const all = content(shown, state, fields)
  return formatScreen(all, settle(state, measureView(all, state, size)), size).map(({ text }) => text)
}

const usual = { columns: 80, rows: 24 }

describe('the list on a screen', () => {
  it('shows both endpoints and the node port of the demo on 80 columns', () => {
    const connections = [{ service: 'work/saythx-redis', endpoint: '10.32.1.2:6379', count: 7 }]
    const lines = draw(document(demo(), { connections }), usual)
    expect(lines).toContainEqual(
      expect.stringMatching(
        /^ {2}work\/saythx-redis +10\.103\.193\.175:6379 :31269 {2}10\.32\.0\.2 \(0\) 10\.32\.1\.2 \(7\)$/,
      ),
    )
    expect(lines[0]).toBe('node1 · nftables · 0.1.0 · up 5m · 4 services · 1 connection tracked')
    expect(lines.at(-1)).toMatch(/^q quit {2}\? help /)
  })

  it('shows what was counted, with bytes where they are counted and there is room', () => {
    const figures = { connections: 12, connectionsPerSecond: 0.5, packetsIn: 3, packetsOut: 4 }
    const show = (columns: number, bytes: number | null) => {
      const port = { service: 'work/saythx-redis', port: '', protocol: 'tcp', family: 4 } as const
      const ports = [{ ...port, ...figures, bytesIn: bytes, bytesOut: bytes === null ? null : 2 * bytes }]
      const traffic = { readAt: '', uncounted: '', accounting: true, unaccounted: '', ports }
      return draw(document(demo(), { traffic }), { columns, rows: 24 }).join('\n')
    }
    expect(show(165, 1_200)).toMatch(/TOTAL +NEW\/S +IN +OUT +ADDRESSES/)
    expect(show(165, 1_200)).toMatch(/work\/saythx-redis +0 +12 +0\.5 +1\.2 kB +2\.4 kB +10\.103/)
    expect(show(165, null)).toMatch(/TOTAL +NEW\/S +ADDRESSES/)
    expect(show(140, 1_200)).toMatch(/work\/saythx-redis +0 +12 +0\.5 +10\.103/)
    expect(show(139, 1_200)).not.toContain('TOTAL')
  })

  it.each([
    [200, 60],
    [80, 24],
    [60, 12],
    [40, 10],
    [20, 5],
    [10, 3],
    [1, 1],
  ])('fits %d columns and %d rows whatever is shown', (columns, rows) => {
    const shown = document([...demo(), ...many(100)], {
      summary: summary(104, {
        drifts: Array.from({ length: 9 }, () => ({
          family: 4 as const,
          at: '2026-11-16T11:59:00Z',
          reason: 'changed' as const,
          culprit: 'nft[123]',
        })),
      }),
    })
    const extras = {
      notes: ['W1116 a\x1b[2J message\nof two lines'],
      introduction: ['x'.repeat(300)],
      hints: ['1 1 pod'],
    }
    for (const page of ['list', 'service', 'problems', 'help'] as const) {
      const lines = draw(shown, { columns, rows }, { page }, { extras })
      expect(lines).toHaveLength(rows)
      expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(columns)
      expect(lines.join('')).not.toMatch(/\p{Cc}/u)
    }
  })

  it('says why the last syncs happened', () => {
    const reports = [
      report({ causes: ['drift'], full: true, startedAt: '2026-11-16T11:59:50Z' }),
      report({ ok: false, error: 'EPERM', causes: ['retry'] }),
    ]
    const lines = draw(document(demo(), { summary: summary(4, { reports }) }), { columns: 120, rows: 30 })
    expect(lines).toContain('  10s ago  IPv4 another program changed our rules: put 8, dropped 0, 1.3 ms')
    expect(lines).toContain('   3s ago  IPv4 tried again: FAILED: EPERM')
  })

  it('shows drift, conflicts, quarantine, invalid manifests and failed syncs, the worst first', () => {
    const shown = document(demo(), {
      summary: summary(4, {
        families: [{ family: 4, stateHash: 'x', entries: 1, lastSync: report({ ok: false, error: 'EPERM' }) }],
        drifts: [{ family: 4, at: '2026-11-16T11:59:58Z', reason: 'changed', culprit: 'nft[77]' }],
        conflicts: [{ family: 4, frontend: ':30080/tcp', winner: 'a/old', loser: 'a/new', reason: 'age' }],
        quarantined: ([4, 6] as const).map((family) => ({
          service: 'a/bad',
          family,
          error: 'EINVAL',
          attempts: 2,
          since: '2026-11-16T11:59:00Z',
          retryAt: '2026-11-16T12:00:09Z',
          entries: [],
        })),
        invalidManifests: [{ file: 'web.yaml', line: 31, field: 'spec', message: 'is not valid' }],
      }),
    })
    const lines = draw(shown, { columns: 120, rows: 40 }).filter((line) => line.startsWith('! '))
    expect(lines).toEqual([
      '! the last sync of IPv4 failed: EPERM',
      '! a/bad (IPv4 and IPv6) is quarantined after 2 attempts: EINVAL; next try in 9s',
      '! invalid manifest web.yaml:31: spec: is not valid; the objects of its last valid content stay',
      '! 2s ago rules (IPv4) were changed by nft[77]',
      expect.stringMatching(/^! :30080\/tcp is claimed by a\/new, but it is held by service a\/old|^! :30080/),
    ])
    const small = draw(shown, { columns: 80, rows: 14 })
    expect(small.join('\n')).toContain('4 problems more: press p')
    expect(small.at(-1)).toContain('p problems (5)')
    expect(draw(shown, usual, { page: 'problems' })[0]).toBe('Problems (5)')
    // `sluice up` begins with its introduction, where problems would not be seen otherwise.
    expect(draw(shown, usual, { page: 'help' }).at(-1)).toContain('p problems (5)')
  })

  it('sorts by connections and by changes, and shows the figure it sorts by', () => {
    const shown = document(demo(), {
      connections: [{ service: 'work/saythx-redis', endpoint: '10.32.0.2:6379', count: 12 }],
      changes: [{ service: 'default/nobody', count: 5 }],
    })
    const first = (sort: ViewState['sort']) => draw(shown, usual, { sort }).find((line) => line.startsWith('>'))
    expect(first('name')).toMatch(/^> default\/hello/)
    expect(first('connections')).toMatch(/^> work\/saythx-redis +12 /)
    expect(first('changes')).toMatch(/^> default\/nobody +5 /)
  })

  it('filters names, addresses and endpoints, and says so', () => {
    const shown = document(demo())
    const rows = (filter: string) => makeTable(shown, 'name', filter).rows.map(({ service: name }) => name)
    expect(rows('REDIS')).toEqual(['work/saythx-redis'])
    expect(rows('31269')).toEqual(['work/saythx-redis'])
    expect(rows('10.32.1.3')).toEqual(['default/hello'])
    expect(draw(shown, usual, { filter: 'zzz' }).join('\n')).toContain('No row of 4 matches "zzz".')
    expect(draw(shown, usual, { filter: 're', isTyping: true }).at(-1)).toBe(
      'filter: re_   Enter keeps it, Esc clears it',
    )
  })

  it('marks services with problems and shows where a service without privileges answers', () => {
    const frontends = [{ kind: 'cluster-ip' as const, ip: '10.96.0.80', port: 80, answersAt: '127.96.0.80:10080' }]
    const lines = draw(
      document([
        service('a/bad', [], { quarantine: 'too many endpoints' }),
        service('a/web', [port('a/web', ['10.9.0.11:8080'], { frontends })]),
      ]),
      usual,
    )
    expect(lines).toContainEqual(expect.stringMatching(/^>!a\/bad .*quarantined: too many endpoints/))
    expect(lines).toContainEqual(expect.stringMatching(/^ {2}a\/web .*127\.96\.0\.80:10080/))
  })

  it('formats only the rows on the screen', () => {
    let formatted = 0
    const services = many(10_000).map((one) => ({
      ...one,
      ports: one.ports.map((each) => ({
        ...each,
        get frontends() {
          formatted++
          return []
        },
      })),
    }))
    const state = { ...initialState, selected: '4 load/service-09000' }
    const lines = draw(document(services), usual, state)
    expect(lines).toContainEqual(expect.stringMatching(/^> load\/service-09000/))
    expect(formatted).toBeLessThan(30)
  })
})

describe('other pages', () => {
  it('shows endpoints, policy and recent changes of a service', () => {
    const shown = document(demo(), { changes: [{ service: 'work/saythx-redis', count: 1 }] })
    const history = { service: 'work/saythx-redis', reports: [report({ services: ['work/saythx-redis'] })] }
    const lines = draw(shown, usual, { page: 'service', selected: '4 work/saythx-redis' }, { history })
    expect(lines.slice(0, 12)).toEqual([
      'Service work/saythx-redis',
      '  IPv4: 1 port, 4 kernel objects',
      '  work/saythx-redis/tcp',
      '    policy: internal cluster, external cluster',
      '    addresses',
      '      cluster-ip 10.103.193.175:6379',
      '      node-port :31269',
      '    endpoints (2)',
      '      10.32.0.2:6379  0 connections',
      '      10.32.1.2:6379  0 connections',
      'Recent changes (1 sync of the last 1)',
      '    3s ago  IPv4 objects changed: put 8, dropped 0, 1.3 ms',
    ])
    expect(lines.at(-1)).toMatch(/^Esc back {2}q quit/)
  })

  it('lists the keys, and what the command says of itself, on the page of help', () => {
    const extras = { notes: [], introduction: ['The demo runs.'], hints: ['2 two pods'] }
    const lines = draw(document(demo(), { now }), { columns: 100, rows: 40 }, { page: 'help' }, { extras })
    expect(lines[0]).toBe('The demo runs.')
    for (const key of ['q, Ctrl-C', '?', 'Enter', 'Esc', '/', 's', 'p', '2 two pods']) {
      expect(lines).toContainEqual(expect.stringMatching(new RegExp(`^  ${key.replace(/[?/]/g, '\\$&')}`)))
    }
  })
})
