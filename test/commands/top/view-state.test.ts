import { describe, expect, it } from 'vitest'
import { readKeys } from '../../../src/commands/top/read-keys.ts'
import { cut, fitItems, wrap } from '../../../src/commands/top/screen-text.ts'
import {
  type Extent,
  initialState,
  type Key,
  pressKey,
  settle,
  type ViewState,
} from '../../../src/commands/top/view-state.ts'

const ids = Array.from({ length: 40 }, (_, i) => `row-${i}`)
const list: Extent = { ids, visible: 10, lines: 0 }

const press = (keys: readonly Key[], extent = list, from: ViewState = initialState): ViewState =>
  keys.reduce((state, key) => pressKey(state, key, extent) as ViewState, from)

describe('keys', () => {
  it('are read from what terminals send', () => {
    expect(readKeys('\x1b[A\x1b[B\x1bOA\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~')).toEqual([
      ...['up', 'down', 'up', 'page-up', 'page-down', 'home', 'end', 'home', 'end'],
    ])
    expect(readKeys('q\r\x1b\x7f\x03é')).toEqual(['q', 'enter', 'escape', 'backspace', 'ctrl-c', 'é'])
    expect(readKeys('\x1b[15~\x1b[1;5C\x01')).toEqual([])
  })

  it('move the selection, and the list scrolls as little as possible', () => {
    expect(press(['down', 'down'])).toMatchObject({ selected: 'row-2', top: 0 })
    expect(press(Array(12).fill('down'))).toMatchObject({ selected: 'row-12', top: 3 })
    expect(press(['end'])).toMatchObject({ selected: 'row-39', top: 30 })
    expect(press(['end', 'up'])).toMatchObject({ selected: 'row-38', top: 30 })
    expect(press(['page-down', 'page-down', 'page-up'])).toMatchObject({ selected: 'row-9' })
    expect(press(['end', 'home'])).toMatchObject({ selected: 'row-0', top: 0 })
    expect(press(['up'])).toMatchObject({ selected: 'row-0', top: 0 })
  })

  it('keep the selected row when the order or the screen changes', () => {
    const state = press(Array(20).fill('down'))
    expect(settle(state, { ids: ids.toReversed(), visible: 10, lines: 0 })).toMatchObject({
      selected: 'row-20',
      top: 11,
    })
    expect(settle(state, { ...list, visible: 3 })).toMatchObject({ selected: 'row-20', top: 18 })
    expect(settle(state, { ids: ids.slice(0, 5), visible: 10, lines: 0 })).toMatchObject({ selected: 'row-0', top: 0 })
    expect(settle(state, { ids: [], visible: 10, lines: 0 })).toMatchObject({ selected: '', top: 0 })
  })

  it('filter by typing after /, and Esc clears the filter', () => {
    expect(press(['/', 'q', 's', '?'])).toMatchObject({ isTyping: true, filter: 'qs?' })
    expect(press(['/', 'a', 'b', 'backspace', 'enter'])).toMatchObject({ isTyping: false, filter: 'a' })
    expect(press(['/', 'a', 'enter', 'escape'])).toMatchObject({ filter: '', page: 'list' })
    expect(press(['/', 'a', 'escape'])).toMatchObject({ isTyping: false, filter: '' })
    expect(press(['/', 'a', 'down'])).toMatchObject({ filter: 'a', selected: 'row-1' })
  })

  it('open pages and come back, sort, and quit', () => {
    expect(press(['down', 'enter'])).toMatchObject({ page: 'service', selected: 'row-1', top: 0 })
    expect(press(['down', 'enter', 'escape'])).toMatchObject({ page: 'list', selected: 'row-1' })
    expect(press(['?'])).toMatchObject({ page: 'help' })
    expect(press(['p', '?', 'escape'])).toMatchObject({ page: 'list' })
    expect(press(['enter'], { ids: [], visible: 5, lines: 0 })).toMatchObject({ page: 'list' })
    expect(press(['s']).sort).toBe('connections')
    expect(press(['s', 's']).sort).toBe('changes')
    expect(press(['s', 's', 's']).sort).toBe('name')
    expect(pressKey(initialState, 'q', list)).toBe('quit')
    expect(pressKey(press(['?']), 'q', list)).toBe('quit')
    expect(pressKey(press(['/']), 'ctrl-c', list)).toBe('quit')
  })

  it('scroll other pages', () => {
    const page: Extent = { ids, visible: 10, lines: 25 }
    const help = press(['?'], page)
    expect(press(['down', 'down'], page, help).top).toBe(2)
    expect(press(['end'], page, help).top).toBe(15)
    expect(press(['end', 'page-up'], page, help).top).toBe(6)
    expect(settle({ ...help, top: 15 }, { ...page, lines: 12 }).top).toBe(2)
  })
})

describe('texts', () => {
  it('are cut, fitted item by item, and wrapped', () => {
    expect(cut('abcdef', 4)).toBe('abc…')
    expect(cut('abc', 0)).toBe('')
    expect(fitItems(['aaa', 'bbb', 'ccc'], 11)).toBe('aaa bbb ccc')
    expect(fitItems(['aaa', 'bbb', 'ccc'], 10)).toBe('aaa bbb +1')
    expect(fitItems(['aaaa', 'bbb'], 3)).toBe('aa…')
    expect(wrap('one two three', 8, '  ')).toEqual(['one two', '  three'])
    expect(wrap('abcdefghijkl', 8, '  ')).toEqual(['abcdefgh', '  ijkl'])
    expect(wrap('  indented', 20)).toEqual(['  indented'])
  })
})
