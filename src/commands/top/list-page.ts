// Formats the list of services of the live view for a screen of any size. Only the rows on the screen are formatted. Pure.

import { familyName } from '../../lib/ip.ts'
import { count } from '../../lib/plural.ts'
import { formatAge } from '../../lib/time.ts'
import { formatBytes } from '../answers/format-bytes.ts'
import { describeReport } from './event-lines.ts'
import { type FlowCounts, flowKey, type LiveDocument, type LiveRow, type LiveTable } from './live-document.ts'
import { clean, cut, fill, fitItems, plain, type ScreenLine } from './screen-text.ts'
import type { ViewState } from './view-state.ts'

export interface ScreenSize {
  readonly columns: number
  readonly rows: number
}

/** What is on the screen besides the answers of the proxy. */
export interface ViewExtras {
  /** The last messages of the log of this process, newest last. */
  readonly notes: readonly string[]
  /** What this command does besides showing the view: addresses, commands to try. */
  readonly introduction: readonly string[]
  /** Keys of this command, as `1 one pod`. */
  readonly hints: readonly string[]
}

/** How the lines of the screen are shared out. */
export interface ListLayout {
  readonly header: number
  readonly problems: number
  readonly visible: number
  readonly syncs: number
  readonly notes: number
}

/** Shares out the lines: on a small screen the list goes before everything else. */
export function layOutList({ rows }: ScreenSize, problems: number, notes: number): ListLayout {
  const header = rows < 10 ? 1 : 2
  const shownProblems = Math.min(problems, limitFor(rows, [8, 12, 20, 40], [0, 1, 2, 4, 8]))
  const syncs = limitFor(rows, [14, 24, 30], [0, 3, 4, 6])
  const shownNotes = Math.min(notes, limitFor(rows, [8, 30], [0, 1, 3]))
  const taken = header + shownProblems + syncs + shownNotes + 2
  return { header, problems: shownProblems, visible: Math.max(1, rows - taken), syncs, notes: shownNotes }
}

/** Returns the limit of the first step that is greater than `rows`. */
function limitFor(rows: number, steps: readonly number[], limits: readonly number[]): number {
  const at = steps.findIndex((step) => rows < step)
  return limits[at < 0 ? limits.length - 1 : at] ?? 0
}

export interface ListContent {
  readonly table: LiveTable
  readonly state: ViewState
  readonly problems: readonly ScreenLine[]
  readonly extras: ViewExtras
}

/** Returns the lines of the page above the line of keys. */
export function formatList(content: ListContent, size: ScreenSize): readonly ScreenLine[] {
  const { table, state, problems, extras } = content
  const layout = layOutList(size, problems.length, extras.notes.length)
  const { document } = table
  return [
    ...formatHeader(document).slice(0, layout.header),
    ...formatProblems(problems, layout.problems),
    ...formatRows(table, state, layout.visible, size.columns),
    ...formatSyncs(document, layout.syncs),
    ...extras.notes.slice(extras.notes.length - layout.notes).map((note) => ({ text: note, colour: 'dim' }) as const),
  ]
}

function formatHeader({ summary, now }: LiveDocument): readonly ScreenLine[] {
  const { node, mode, version, startedAt, services, connections } = summary
  const tracked = connections === undefined ? [] : [`${count(connections.tracked, 'connection')} tracked`]
  const age = `up ${formatAge(now - Date.parse(startedAt))}`
  const families = summary.families.map(({ family, stateHash, entries, lastSync }) => {
    const synced =
      lastSync === undefined ? 'has not synced' : `synced ${formatAge(now - Date.parse(lastSync.startedAt))} ago`
    return `${familyName(family)} ${synced}${entries === 0 ? '' : `, state ${stateHash}`}`
  })
  return [
    { text: [node, mode, version, age, count(services, 'service'), ...tracked].join(' · '), colour: 'bold' },
    plain(families.join(' · ')),
  ]
}

function formatProblems(problems: readonly ScreenLine[], limit: number): readonly ScreenLine[] {
  if (problems.length <= limit)
    return problems.map(({ text, colour }) => ({ text: `! ${text}`, ...(colour && { colour }) }))
  if (limit === 0) return []
  const shown = problems.slice(0, limit - 1)
  const rest: ScreenLine = {
    text: `${count(problems.length - shown.length, 'problem')} more: press p`,
    colour: 'yellow',
  }
  return [...formatProblems(shown, limit), rest]
}

interface Cells {
  readonly row: LiveRow
  readonly addresses: readonly string[]
  readonly endpoints: readonly string[]
}

function formatRows(table: LiveTable, state: ViewState, visible: number, columns: number): readonly ScreenLine[] {
  const { rows, flows, total } = table
  const shown = rows.slice(state.top, state.top + visible)
  const cells = shown.map((row) => ({ row, addresses: shortFrontends(row), endpoints: describeEndpoints(row, flows) }))
  const widths = chooseWidths(cells, state, columns)
  const head = formatLine(widths, {
    name:
      shown.length < rows.length
        ? `SERVICE PORT ${state.top + 1}-${state.top + shown.length}/${rows.length}`
        : 'SERVICE PORT',
    figure: state.sort === 'changes' ? 'CHANGES' : 'CONN',
    totals: ['TOTAL', 'NEW/S', 'IN', 'OUT'],
    addresses: ['ADDRESSES'],
    endpoints: ['ENDPOINTS (CONNECTIONS)'],
  })
  const lines = cells.map(({ row, addresses, endpoints }): ScreenLine => {
    const figure = String(state.sort === 'changes' ? row.changes : row.connections)
    const text = formatLine(widths, { name: row.name, figure, totals: describeCounted(row), addresses, endpoints })
    const marks = `${row.id === state.selected ? '>' : ' '}${row.problem === '' ? ' ' : '!'}`
    return { text: marks + text, ...colourOf(row, state) }
  })
  const none = total === 0 ? 'There are no services.' : `No row of ${total} matches "${state.filter}".`
  return [{ text: `  ${head}`, colour: 'bold' }, ...lines, ...(rows.length > 0 ? [] : [plain(`  ${none}`)])]
}

function colourOf(row: LiveRow, { selected }: ViewState): Pick<ScreenLine, 'colour'> {
  if (row.id === selected) return { colour: 'reverse' }
  if (row.problem !== '') return { colour: 'red' }
  return row.port?.endpoints.length === 0 ? { colour: 'yellow' } : {}
}

/** The width of each column; 0 for a column that is left out. */
interface Widths {
  readonly name: number
  readonly figure: number
  /** The width of each of the columns with what was counted. */
  readonly totals: number
  /** How many of these columns there are. */
  readonly totalColumns: number
  readonly addresses: number
  readonly endpoints: number
}

const gap = 2

/** Endpoints go before addresses, and addresses before names: two endpoints and a node port fit beside each other on 80 columns. */
function chooseWidths(cells: readonly Cells[], { sort }: ViewState, columns: number): Widths {
  const room = columns - 2
  const widest = (texts: readonly string[]) => Math.max(12, ...texts.map((text) => text.length))
  const natural = {
    name: widest(cells.map(({ row }) => row.name)),
    addresses: widest(cells.map(({ addresses }) => addresses.join(' '))),
    endpoints: widest(['ENDPOINTS (CONNECTIONS)', ...cells.map(({ endpoints }) => endpoints.join(' '))]),
  }
  const isWide = columns >= 110
  const figure = isWide || sort !== 'name' ? 8 : 0
  const hasAddresses = columns >= 72 && (isWide || sort === 'name')
  const totals = 10
  const totalColumns = countTotals(cells, columns)
  const forFigure = (figure === 0 ? 0 : figure + gap) + totalColumns * (totals + gap)
  const left = room - gap - forFigure - (hasAddresses ? gap : 0)
  const forEndpoints = Math.min(natural.endpoints, Math.floor(room * 0.4))
  const addresses = hasAddresses ? Math.min(natural.addresses, Math.floor(room * 0.35)) : 0
  const name = Math.min(natural.name, Math.max(12, left - forEndpoints - addresses))
  return { name, figure, totals, totalColumns, addresses, endpoints: Math.max(0, left - name - addresses) }
}

/** Connections and their rate; on wider screens also bytes in both directions, where they are counted. */
function countTotals(cells: readonly Cells[], columns: number): 0 | 2 | 4 {
  if (columns < 140 || !cells.some(({ row }) => row.counted !== undefined)) return 0
  return columns >= 165 && cells.some(({ row }) => (row.counted?.bytesIn ?? null) !== null) ? 4 : 2
}

interface LineCells {
  readonly name: string
  readonly figure: string
  readonly totals: readonly string[]
  readonly addresses: readonly string[]
  readonly endpoints: readonly string[]
}

function formatLine(widths: Widths, { name, figure, totals, addresses, endpoints }: LineCells): string {
  const space = ' '.repeat(gap)
  return [
    fill(clean(name), widths.name),
    ...(widths.figure === 0 ? [] : [cut(figure, widths.figure).padStart(widths.figure)]),
    ...totals.slice(0, widths.totalColumns).map((text) => cut(text, widths.totals).padStart(widths.totals)),
    ...(widths.addresses === 0 ? [] : [fill(fitItems(addresses, widths.addresses), widths.addresses)]),
    fitItems(endpoints, widths.endpoints),
  ].join(space)
}

/** Connections since counting began, new ones per second, and bytes from and to clients. */
function describeCounted({ counted }: LiveRow): readonly string[] {
  if (counted === undefined) return ['-', '-', '-', '-']
  const { connections, connectionsPerSecond, bytesIn, bytesOut } = counted
  const bytes = [bytesIn, bytesOut].map((value) => (value === null ? '-' : formatBytes(value)))
  return [String(connections), String(connectionsPerSecond ?? '-'), ...bytes]
}

const shortFrontends = ({ port }: LiveRow): readonly string[] =>
  (port?.frontends ?? []).map(({ answersAt }) => answersAt).filter((text) => text !== '')

function describeEndpoints({ port, problem }: LiveRow, flows: FlowCounts): readonly string[] {
  if (port === undefined) return [problem || 'no ports']
  if (port.endpoints.length === 0) return ['none: refused']
  const short = shareOnePort(port.endpoints.map(({ address }) => address))
  return port.endpoints.map(({ address }) => `${short(address)} (${flows.get(flowKey(port.name, address)) ?? 0})`)
}

/** Leaves out the port of the endpoints if all have the same: this makes room for one more endpoint. */
function shareOnePort(endpoints: readonly string[]): (endpoint: string) => string {
  const portOf = (endpoint: string) => endpoint.slice(endpoint.lastIndexOf(':'))
  const first = portOf(endpoints[0] ?? '')
  if (!endpoints.every((endpoint) => portOf(endpoint) === first)) return (endpoint) => endpoint
  return (endpoint) => endpoint.slice(0, -first.length).replace(/^\[|\]$/g, '')
}

function formatSyncs({ summary, now }: LiveDocument, limit: number): readonly ScreenLine[] {
  if (limit === 0) return []
  const lines = summary.reports.slice(0, limit - 1).map((report): ScreenLine => {
    const text = `${formatAge(now - Date.parse(report.startedAt)).padStart(5)} ago  ${describeReport(report)}`
    return report.ok ? plain(text) : { text, colour: 'red' }
  })
  return [{ text: 'Last syncs', colour: 'bold' }, ...lines]
}
