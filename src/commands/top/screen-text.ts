// Fits texts into the cells of a screen: control characters never reach the terminal, and no line is longer than the screen is wide. Pure.

import type { Colour } from '../terminal.ts'

/** One line of the screen in one colour, or without any. */
export interface ScreenLine {
  readonly text: string
  readonly colour?: Colour | 'reverse'
}

export const plain = (text: string): ScreenLine => ({ text })

const controls = /[\p{Cc}\p{Zl}\p{Zp}]/gu

/** Replaces control characters: names, errors and log lines come from others and could move the cursor. */
export const clean = (text: string): string => text.replace(controls, ' ')

/** Cuts a text that is too long, with an ellipsis at its end. */
export function cut(text: string, width: number): string {
  if (text.length <= width) return text
  return width <= 0 ? '' : `${text.slice(0, width - 1)}…`
}

/** Cuts or fills a text to exactly this width. */
export const fill = (text: string, width: number): string => cut(text, width).padEnd(Math.max(0, width))

/** Joins as many whole items as fit; `+N` counts the others. The first item is cut if even it does not fit. */
export function fitItems(items: readonly string[], width: number): string {
  const all = items.join(' ')
  if (all.length <= width) return all
  for (let shown = items.length - 1; shown > 0; shown--) {
    const text = `${items.slice(0, shown).join(' ')} +${items.length - shown}`
    if (text.length <= width) return text
  }
  return cut(items[0] ?? '', width)
}

/** Breaks a text into lines at spaces; a word that is longer than a line is broken. */
export function wrap(text: string, width: number, indent = ''): readonly string[] {
  const room = Math.max(indent.length + 4, width)
  const lines: string[] = []
  let rest = text
  while (rest.length > room) {
    const space = rest.lastIndexOf(' ', room)
    const at = space > rest.search(/\S/) ? space : room
    lines.push(rest.slice(0, at))
    rest = indent + rest.slice(at).trimStart()
  }
  return [...lines, rest]
}
