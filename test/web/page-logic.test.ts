import { describe, expect, it } from 'vitest'
import type { Explanation } from '../../src/http/admin.ts'
import type { ServiceRow } from '../../src/http/admin-page.ts'
import { drawPath } from '../../web/path-layout.ts'
import { hashOf, parseRoute } from '../../web/route.ts'
import { commandFor, filterRows, sortRows, sumConnections } from '../../web/service-table.ts'
import { showHidden } from '../../web/visible-text.ts'
import { formatBytes, formatMs, formatShare, quoteWord } from '../../web/words.ts'

const row = (name: string, change: Partial<ServiceRow> = {}): ServiceRow => ({
  name,
  addresses: ['10.96.0.1:80/tcp'],
  moreAddresses: 0,
  ports: 1,
  endpoints: 1,
  local: 0,
  state: 'ok',
  note: '',
  ...change,
})

describe('hidden characters', () => {
  it.each([
    ['a\u202eb', 'a⟨U+202E⟩b'],
    ['a\u2066b\u2069', 'a⟨U+2066⟩b⟨U+2069⟩'],
    ['a\u200bb\u200f', 'a⟨U+200B⟩b⟨U+200F⟩'],
    ['a\u0000b\u001b[31m', 'a⟨U+0000⟩b⟨U+001B⟩[31m'],
    ['a\u061cb\ufeff', 'a⟨U+061C⟩b⟨U+FEFF⟩'],
    ['one\ntwo\tthree', 'one two three'],
    ['<b>"&\' ünïcode 漢字', '<b>"&\' ünïcode 漢字'],
  ])('%j is shown as %s', (text, shown) => expect(showHidden(text)).toBe(shown))
})

describe('the list of services', () => {
  const rows = [
    row('b/web', { endpoints: 5 }),
    row('a/db', { state: 'quarantined', note: 'kernel says no' }),
    row('c/x', { endpoints: 9 }),
  ]
  const none = { connections: new Map<string, number>(), rates: new Map<string, number>() }
  const names = (list: readonly ServiceRow[]) => list.map(({ name }) => name)

  it('finds services by all words, in name, address, state and reason', () => {
    expect(names(filterRows(rows, 'WEB'))).toEqual(['b/web'])
    expect(names(filterRows(rows, 'quarantined kernel'))).toEqual(['a/db'])
    expect(names(filterRows(rows, '10.96 x'))).toEqual(['c/x'])
    expect(filterRows(rows, ' ')).toBe(rows)
  })

  it('sorts numbers with the largest first and states with the worst first', () => {
    expect(names(sortRows(rows, { by: 'name', isReversed: false }, none))).toEqual(['a/db', 'b/web', 'c/x'])
    expect(names(sortRows(rows, { by: 'endpoints', isReversed: false }, none))).toEqual(['c/x', 'b/web', 'a/db'])
    expect(names(sortRows(rows, { by: 'endpoints', isReversed: true }, none))).toEqual(['a/db', 'b/web', 'c/x'])
    expect(names(sortRows(rows, { by: 'state', isReversed: false }, none))).toEqual(['a/db', 'b/web', 'c/x'])
    expect(
      names(
        sortRows(rows, { by: 'connections', isReversed: false }, { ...none, connections: new Map([['b/web', 1]]) }),
      ),
    ).toEqual(['b/web', 'a/db', 'c/x'])
  })

  it('sums connections of all ports of a service', () => {
    const counts = [
      { service: 'a/db:sql', endpoint: '1', count: 2 },
      { service: 'a/db', endpoint: '2', count: 3 },
    ]
    expect(sumConnections({ at: 0, counts })).toEqual(new Map([['a/db', 5]]))
  })

  it('writes the command that lists the same', () => {
    expect(commandFor('', { by: 'name', isReversed: false })).toEqual({ words: ['status'], pipe: '' })
    expect(commandFor('shop/', { by: 'state', isReversed: false })).toEqual({
      words: ['status', '--namespace', 'shop', '--sort-by', 'state'],
      pipe: '',
    })
    expect(commandFor("it's x", { by: 'name', isReversed: false }).pipe).toBe(
      String.raw`| grep -iF 'it'\''s' | grep -iF x`,
    )
  })
})

describe('words', () => {
  it('has few digits', () => {
    expect([formatMs(0.32), formatMs(25.2), formatMs(1234), formatMs(99_000)]).toEqual([
      '0.3 ms',
      '25 ms',
      '1.2 s',
      '99 s',
    ])
    expect([formatBytes(512), formatBytes(73_200_000)]).toEqual(['512 B', '73.2 MB'])
    expect([formatShare(0), formatShare(0.5), formatShare(0.031)]).toEqual(['0 %', '50 %', '3.1 %'])
  })

  it('quotes words that a shell would change', () => {
    expect([quoteWord('a/b:80'), quoteWord('$(reboot)'), quoteWord("a'b")]).toEqual([
      'a/b:80',
      "'$(reboot)'",
      String.raw`'a'\''b'`,
    ])
  })
})

describe('addresses of pages', () => {
  it('keep any name', () => {
    for (const name of ['shop/web', 'a/<script>&="?#%', 'a/\u202e']) {
      const route = parseRoute(hashOf('service', { name }))
      expect([route.page, route.query.get('name')]).toEqual(['service', name])
    }
  })
})

describe('the picture of a path', () => {
  const endpoint = (n: number, node: string, probability: number) => ({
    address: `10.1.0.${n}:80`,
    node,
    probability,
    snat: false,
    why: 'ready',
  })
  const explanation = (endpoints: Explanation['endpoints'], change: Partial<Explanation> = {}): Explanation => ({
    node: 'here',
    mode: 'nftables',
    packet: { from: '10.0.0.1', to: '10.96.0.1', port: 80, protocol: 'tcp', origin: 'outside' },
    verdict: 'forward',
    reason: '',
    service: 'shop/web:http',
    frontend: 'cluster IP 10.96.0.1',
    steps: [],
    endpoints,
    affinitySeconds: 0,
    snat: true,
    hairpin: false,
    entries: [],
    remarks: [],
    ...change,
  })
  const noTraffic = () => ({ isBusy: false, text: '' })

  it('puts endpoints into frames of their nodes, this node first, with their shares', () => {
    const { boxes, frames, lines } = drawPath(
      explanation([endpoint(1, 'z', 0.25), endpoint(2, 'here', 0.75)]),
      noTraffic,
      false,
    )
    expect(frames.map(({ label }) => label)).toEqual(['this node (here)', 'z'])
    expect(boxes.map(({ lines: [first] }) => first)).toEqual([
      'Client',
      'Frontend',
      'Policy',
      '10.1.0.2:80',
      '10.1.0.1:80',
    ])
    expect(lines.map(({ share }) => share)).toEqual([1, 1, 0.75, 0.25])
    expect(boxes[2]?.lines[2]).toContain('masqueraded')
  })

  it.each([true, false])('keeps every box inside, and no two over each other (narrow: %s)', (isNarrow) => {
    const many = Array.from({ length: 25 }, (_, n) => endpoint(n, `node${n % 4}`, 1 / 25))
    const { boxes, width, height } = drawPath(explanation(many), noTraffic, isNarrow)
    for (const box of boxes) {
      expect(box.x >= 0 && box.x + box.width <= width && box.y >= 0 && box.y + box.height <= height, box.id).toBe(true)
      const over = boxes.filter(
        (other) =>
          other !== box &&
          other.x < box.x + box.width &&
          box.x < other.x + other.width &&
          other.y < box.y + box.height &&
          box.y < other.y + other.height,
      )
      expect(over.map(({ id }) => id)).toEqual([])
    }
    expect(boxes.at(-1)?.lines).toEqual(['and 15 more, listed below'])
  })

  it('ends at the policy if the packet is refused', () => {
    const { boxes } = drawPath(explanation([], { verdict: 'reject' }), noTraffic, false)
    expect(boxes.map(({ look }) => look)).toEqual(['client', 'frontend', 'end'])
  })
})
