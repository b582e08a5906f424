// The state of the live view, and what each key does to it. Pure.

import { type SortOrder, sortOrders } from './live-document.ts'

export type ViewPage = 'list' | 'service' | 'problems' | 'help'

export interface ViewState {
  readonly page: ViewPage
  readonly sort: SortOrder
  readonly filter: string
  /** Letters go into the filter. */
  readonly isTyping: boolean
  /** The id of the selected row: it stays selected when the order changes. '' for the first row. */
  readonly selected: string
  /** The first line that is shown, of the list or of another page. */
  readonly top: number
}

export const initialState: ViewState = {
  page: 'list',
  sort: 'name',
  filter: '',
  isTyping: false,
  selected: '',
  top: 0,
}

/** What the keys move over. */
export interface Extent {
  /** The ids of the rows of the list, in their order. */
  readonly ids: readonly string[]
  /** How many rows or lines fit on the page. */
  readonly visible: number
  /** How many lines a page other than the list has. */
  readonly lines: number
}

/** A key by name (`up`, `enter`, `ctrl-c`), or the character that it types. */
export type Key = string

/** Returns the state after the key; 'quit' if the key ends the view. */
export function pressKey(state: ViewState, key: Key, extent: Extent): ViewState | 'quit' {
  if (key === 'ctrl-c') return 'quit'
  if (state.isTyping) return typeFilter(state, key, extent)
  const moved = move(state, key, extent)
  if (moved !== undefined) return moved
  return state.page === 'list' ? pressOnList(state, key, extent) : pressOnPage(state, key)
}

/** Keeps the selection and the scroll position inside a table or a screen that has changed. */
export function settle(state: ViewState, extent: Extent): ViewState {
  if (state.page !== 'list') return { ...state, top: clamp(state.top, 0, extent.lines - extent.visible) }
  const index = Math.max(0, extent.ids.indexOf(state.selected))
  return select(state, index, extent)
}

function typeFilter(state: ViewState, key: Key, extent: Extent): ViewState {
  switch (key) {
    case 'enter':
      return { ...state, isTyping: false }
    case 'escape':
      return { ...state, isTyping: false, filter: '', top: 0 }
    case 'backspace':
      return { ...state, filter: state.filter.slice(0, -1), top: 0 }
    default:
      if (key.length === 1) return { ...state, filter: state.filter + key, top: 0 }
      return move(state, key, extent) ?? state
  }
}

/** How far a key moves; undefined if the key does not move. */
function distance(key: Key, { ids, visible, lines }: Extent): number | undefined {
  const all = ids.length + lines
  const distances: Readonly<Record<string, number>> = {
    up: -1,
    down: 1,
    'page-up': -Math.max(1, visible - 1),
    'page-down': Math.max(1, visible - 1),
    home: -all,
    end: all,
  }
  return distances[key]
}

function move(state: ViewState, key: Key, extent: Extent): ViewState | undefined {
  const by = distance(key, extent)
  if (by === undefined) return undefined
  if (state.page !== 'list') return settle({ ...state, top: state.top + by }, extent)
  return select(state, Math.max(0, extent.ids.indexOf(state.selected)) + by, extent)
}

/** Selects the row and scrolls as little as possible to show it. */
function select(state: ViewState, index: number, { ids, visible }: Extent): ViewState {
  const at = clamp(index, 0, ids.length - 1)
  const lowest = Math.max(0, at - visible + 1)
  const top = clamp(clamp(state.top, lowest, at), 0, ids.length - visible)
  return { ...state, selected: ids[at] ?? '', top }
}

function pressOnList(state: ViewState, key: Key, { ids }: Extent): ViewState | 'quit' {
  switch (key) {
    case 'q':
      return 'quit'
    case '/':
      return { ...state, isTyping: true }
    case 's':
      return { ...state, sort: sortOrders[(sortOrders.indexOf(state.sort) + 1) % sortOrders.length] ?? 'name' }
    case 'enter':
      return ids.length === 0 ? state : openPage(state, 'service')
    case 'escape':
      return { ...state, filter: '', top: 0 }
    default:
      return openByKey(state, key)
  }
}

function pressOnPage(state: ViewState, key: Key): ViewState | 'quit' {
  if (key === 'q') return 'quit'
  if (key === 'escape' || key === 'enter' || key === 'backspace') return { ...state, page: 'list', top: 0 }
  return openByKey(state, key)
}

function openByKey(state: ViewState, key: Key): ViewState {
  if (key === '?') return openPage(state, 'help')
  return key === 'p' ? openPage(state, 'problems') : state
}

const openPage = (state: ViewState, page: ViewPage): ViewState => ({ ...state, page, top: 0 })

const clamp = (value: number, least: number, most: number): number => Math.max(least, Math.min(value, most))
