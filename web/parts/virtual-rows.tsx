// A list of which only the rows on the screen exist, so that ten thousand rows are as quick as ten. Arrow keys move through all rows.

import type { ComponentChildren } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'

export interface VirtualRowsProps {
  readonly count: number
  readonly rowHeight: number
  /** Draws one row. The row has an element with `data-row` that takes the focus, with the tab index that is given. */
  readonly draw: (index: number, tabIndex: 0 | -1) => ComponentChildren
  readonly label: string
  /** Stays at the top while the rows scroll. */
  readonly head: ComponentChildren
}

/** Rows beyond the edges, so that scrolling shows no gaps. */
const spare = 8

export function VirtualRows({ count, rowHeight, draw, label, head }: VirtualRowsProps) {
  const box = useRef<HTMLDivElement>(null)
  const [view, setView] = useState({ top: 0, height: 600 })
  const [active, setActive] = useState(0)
  const wanted = useRef<number | undefined>(undefined)
  useEffect(() => {
    const place = box.current
    if (place === null) return
    const read = () => setView({ top: place.scrollTop, height: place.clientHeight - headHeight(place) })
    const sizes = new ResizeObserver(read)
    sizes.observe(place)
    place.addEventListener('scroll', read, { passive: true })
    return () => {
      sizes.disconnect()
      place.removeEventListener('scroll', read)
    }
  }, [])
  const first = Math.max(0, Math.floor(view.top / rowHeight) - spare)
  const end = Math.min(count, Math.ceil((view.top + view.height) / rowHeight) + spare)
  // The tab key must always find a row, also after the mouse scrolled the last one away.
  const reachable = Math.min(Math.max(active, first), Math.max(first, end - 1))
  useEffect(() => {
    if (wanted.current === undefined) return
    const row = box.current?.querySelector<HTMLElement>(`[data-row="${wanted.current}"]`)
    if (row === null || row === undefined) return
    wanted.current = undefined
    row.focus({ preventScroll: true })
  })
  const move = (event: KeyboardEvent) => {
    const page = Math.max(1, Math.floor(view.height / rowHeight) - 1)
    const target = targetOf(event.key, reachable, page, count)
    if (target === undefined || box.current === null) return
    event.preventDefault()
    wanted.current = target
    setActive(target)
    showRow(box.current, target, rowHeight)
  }
  return (
    <div class="rows" ref={box} role="none" onKeyDown={move}>
      <div class="rows-head" role="rowgroup">
        {head}
      </div>
      <div class="rows-space" role="rowgroup" aria-label={label} style={{ height: `${count * rowHeight}px` }}>
        {Array.from({ length: Math.max(0, end - first) }, (_, offset) => first + offset).map((index) => (
          <div
            key={index}
            class="rows-row"
            role="row"
            aria-rowindex={index + 2}
            style={{ height: `${rowHeight}px`, transform: `translateY(${index * rowHeight}px)` }}
          >
            {draw(index, index === reachable ? 0 : -1)}
          </div>
        ))}
      </div>
    </div>
  )
}

function targetOf(key: string, from: number, page: number, count: number): number | undefined {
  const moves: Readonly<Record<string, number>> = {
    ArrowDown: from + 1,
    ArrowUp: from - 1,
    PageDown: from + page,
    PageUp: from - page,
    Home: 0,
    End: count - 1,
  }
  const target = moves[key]
  return target === undefined || count === 0 ? undefined : Math.min(Math.max(target, 0), count - 1)
}

/** The head covers the first rows of the box. */
const headHeight = (box: HTMLElement): number => (box.firstElementChild as HTMLElement).offsetHeight

function showRow(box: HTMLElement, index: number, rowHeight: number): void {
  const top = index * rowHeight
  const height = box.clientHeight - headHeight(box)
  if (top < box.scrollTop) box.scrollTop = top
  else if (top + rowHeight > box.scrollTop + height) box.scrollTop = top + rowHeight - height
}
