// The live view as a function: from the answers of a proxy, the state of the view and the size of the screen to lines. Pure.

import { formatList, layOutList, type ScreenSize, type ViewExtras } from './list-page.ts'
import { type LiveTable, type ServiceHistory, sortOrders } from './live-document.ts'
import { listProblems } from './live-problems.ts'
import { clean, cut, plain, type ScreenLine, wrap } from './screen-text.ts'
import { formatService } from './service-page.ts'
import type { Extent, ViewState } from './view-state.ts'

/** Everything that the view shows except the size of the screen. */
export interface ViewContent {
  readonly table: LiveTable
  readonly history: ServiceHistory | undefined
  readonly extras: ViewExtras
  /** Why the last answers are old; '' if they are not. */
  readonly warning: string
}

/** Returns what the keys move over on this screen. */
export function measureView(content: ViewContent, state: ViewState, size: ScreenSize): Extent {
  const { ids } = content.table
  if (state.page !== 'list') {
    return { ids, visible: Math.max(1, size.rows - 1), lines: pageLines(content, state, size).length }
  }
  const problems = problemsOf(content)
  return { ids, visible: layOutList(size, problems.length, content.extras.notes.length).visible, lines: 0 }
}

/** Returns exactly as many lines as the screen has, none wider than the screen. The last line names the keys. */
export function formatScreen(content: ViewContent, state: ViewState, size: ScreenSize): readonly ScreenLine[] {
  const room = Math.max(0, size.rows - 1)
  const lines =
    state.page === 'list' ? listLines(content, state, size) : pageLines(content, state, size).slice(state.top)
  const blank = Array.from({ length: Math.max(0, room - lines.length) }, () => plain(''))
  const all = [...lines.slice(0, room), ...blank, formatKeys(content, state)]
  return all.map(({ text, colour }) => ({ text: cut(clean(text), size.columns), ...(colour && { colour }) }))
}

const listLines = ({ table, extras, ...content }: ViewContent, state: ViewState, size: ScreenSize) =>
  formatList({ table, state, problems: problemsOf({ table, extras, ...content }), extras }, size)

function problemsOf({ table, warning }: ViewContent): readonly ScreenLine[] {
  const problems = listProblems(table.document)
  return warning === '' ? problems : [{ text: warning, colour: 'red' }, ...problems]
}

/** The lines of a page that is scrolled as a whole. Long lines continue on the next one. */
function pageLines(content: ViewContent, state: ViewState, size: ScreenSize): readonly ScreenLine[] {
  return pageText(content, state).flatMap(({ text, colour }) =>
    wrap(clean(text), size.columns, '  ').map((line) => ({ text: line, ...(colour && { colour }) })),
  )
}

function pageText(content: ViewContent, state: ViewState): readonly ScreenLine[] {
  switch (state.page) {
    case 'help':
      return formatHelpPage(content.extras)
    case 'problems':
      return formatProblemsPage(content)
    default:
      return formatService(content.table, selectedService(content.table, state), content.history)
  }
}

/** The service of the selected row; '' if there is none. */
export const selectedService = ({ rows }: LiveTable, { selected }: ViewState): string =>
  (rows.find(({ id }) => id === selected) ?? rows[0])?.service ?? ''

function formatProblemsPage(content: ViewContent): readonly ScreenLine[] {
  const problems = problemsOf(content)
  const notes = content.extras.notes.map((note) => plain(`  ${note}`))
  return [
    { text: `Problems (${problems.length})`, colour: 'bold' },
    ...(problems.length === 0 ? [plain('  none')] : problems.map((line) => ({ ...line, text: `! ${line.text}` }))),
    ...(notes.length === 0 ? [] : [{ text: 'Last warnings and errors of the log', colour: 'bold' } as const, ...notes]),
  ]
}

const keyHelp: readonly (readonly [keys: string, meaning: string])[] = [
  ['q, Ctrl-C', 'ends the view'],
  ['?', 'this page'],
  ['arrows, PgUp, PgDn, Home, End', 'move'],
  ['Enter', 'the page of the selected service'],
  ['Esc', 'back; on the list: no filter'],
  ['/', 'then letters: only services whose name, address or endpoint has them'],
  ['s', `sorts by ${sortOrders.join(', ')}`],
  ['p', 'all problems, and the last messages of the log'],
]

function formatHelpPage({ introduction, hints }: ViewExtras): readonly ScreenLine[] {
  const introduced = introduction.length === 0 ? [] : [...introduction.map(plain), plain('')]
  return [
    ...introduced,
    { text: 'Keys', colour: 'bold' },
    ...keyHelp.map(([keys, meaning]) => plain(`  ${keys.padEnd(30)} ${meaning}`)),
    ...hints.map((hint) => plain(`  ${hint}`)),
    plain(''),
    { text: 'What the list shows', colour: 'bold' },
    plain(
      '  One row per port of a service: its addresses (:N is a node port), its endpoints, and in parentheses the connections to each of them. CHANGES counts the last syncs that changed the service. ! marks a service with a problem.',
    ),
  ]
}

function formatKeys(content: ViewContent, state: ViewState): ScreenLine {
  if (state.isTyping) return { text: `filter: ${state.filter}_   Enter keeps it, Esc clears it`, colour: 'cyan' }
  const total = problemsOf(content).length
  const problems = total === 0 ? [] : [`p problems (${total})`]
  const filter = state.filter === '' ? '/ filter' : `/ filter "${state.filter}" (Esc clears)`
  const ofList = ['q quit', '? help', 'Enter details', filter, `s sort: ${state.sort}`, ...content.extras.hints]
  const ofPage = ['Esc back', 'q quit', '? help', '↑↓ PgUp PgDn scroll']
  const keys =
    state.page === 'list' ? [...ofList, ...problems] : [...ofPage, ...(state.page === 'problems' ? [] : problems)]
  return { text: keys.join('  '), colour: 'cyan' }
}
