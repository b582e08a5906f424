// Lays out tables and paragraphs for the width of the terminal: a table that is too wide wraps its last column, or is stacked. Pure.

import { stripColours, type Terminal } from '../terminal.ts'
import { wrap } from '../top/screen-text.ts'

type TableRow = readonly string[]

type Width = Pick<Terminal, 'paint' | 'columns'>

const gap = '  '
/** A last column that is narrower than this is not worth wrapping. */
const narrow = 16

/** Returns '' if there are no rows. Each column is as wide as its widest cell, if the terminal is wide enough. */
export function formatTable(heads: TableRow, rows: readonly TableRow[], terminal: Width): string {
  if (rows.length === 0) return ''
  const widths = heads.map((head, i) => Math.max(head.length, ...rows.map((row) => visibleLength(row[i] ?? ''))))
  const before = widths.slice(0, -1).reduce((sum, width) => sum + width + gap.length, 0)
  const room = terminal.columns - before
  if (room < Math.min(narrow, widths.at(-1) ?? 0)) return stack(heads, rows, terminal)
  const format = (cells: TableRow) => formatRow(cells, widths, room)
  return [...format(heads).map((line) => terminal.paint('bold', line)), ...rows.flatMap(format)]
    .map((line) => `${line}\n`)
    .join('')
}

/** Wraps the text at spaces. Lines after the first begin with the indent. */
export function formatParagraph(text: string, terminal: Pick<Terminal, 'columns'>, indent = ''): string {
  return Number.isFinite(terminal.columns) ? `${wrapCell(text, terminal.columns, indent).join('\n')}\n` : `${text}\n`
}

function formatRow(cells: TableRow, widths: readonly number[], room: number): readonly string[] {
  const head = cells.slice(0, -1).map((cell, i) => cell + ' '.repeat((widths[i] ?? 0) - visibleLength(cell)) + gap)
  const last = wrapCell(cells.at(-1) ?? '', room, '')
  const blank = ' '.repeat(visibleLength(head.join('')))
  return last.map((text, i) => `${i === 0 ? head.join('') : blank}${text}`.trimEnd())
}

/** One block per row: the first cell, and below it the others with their heads. */
function stack(heads: TableRow, rows: readonly TableRow[], terminal: Width): string {
  const blocks = rows.map(([first = '', ...cells]) => {
    const lines = cells.flatMap((cell, i) => {
      const label = `    ${terminal.paint('dim', (heads[i + 1] ?? '').toLowerCase())}${gap}`
      return cell === '' || cell === '-' ? [] : wrapCell(label + cell, terminal.columns, '      ')
    })
    return [first, ...lines].map((line) => `${line}\n`).join('')
  })
  return blocks.join('')
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: colours are control characters.
const colouredStart = /^(?:\s*\x1b\[\d+m[^\x1b]*\x1b\[0m)*/
// biome-ignore lint/suspicious/noControlCharactersInRegex: colours are control characters.
const colourCode = /\x1b\[\d+m/

/** A text in one colour keeps it on every line. Otherwise the coloured words at its beginning do. */
function wrapCell(text: string, width: number, indent: string): readonly string[] {
  if (visibleLength(text) <= width) return [text]
  const start = colouredStart.exec(text)?.[0] ?? ''
  const label = stripColours(start)
  const lines = wrap(stripColours(text), width, indent)
  if (label.length === visibleLength(text)) {
    const code = colourCode.exec(start)?.[0] ?? ''
    return lines.map((line) => `${code}${line}\x1b[0m`)
  }
  const [first = '', ...rest] = lines
  return first.startsWith(label) ? [start + first.slice(label.length), ...rest] : lines
}

const visibleLength = (text: string): number => stripColours(text).length
