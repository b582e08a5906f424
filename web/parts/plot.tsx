// A small plot over time, drawn by uPlot in the colours of the theme, with a sentence for screen readers.

import { useEffect, useRef } from 'preact/hooks'
import uPlot from 'uplot'
import { watchTheme } from '../theme.ts'

export interface PlotProps {
  readonly title: string
  /** Unix ms. */
  readonly times: readonly number[]
  readonly values: readonly (number | null)[]
  readonly format: (value: number) => string
  /** The name of the colour in the style sheet. */
  readonly colour?: string
  readonly kind?: 'line' | 'bars'
  /** True for counts, whose axis has no fractions. */
  readonly isWhole?: boolean
}

const height = 92

export function Plot(props: PlotProps) {
  const { times, values, title, format } = props
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | undefined>(undefined)
  const latest = useRef(props)
  latest.current = props
  useEffect(() => {
    const place = box.current
    if (place === null) return
    const draw = () => {
      plot.current?.destroy()
      plot.current = new uPlot(makeOptions(latest.current, place), makeData(latest.current), place)
    }
    draw()
    const sizes = new ResizeObserver(() => plot.current?.setSize({ width: place.clientWidth, height }))
    sizes.observe(place)
    const unwatch = watchTheme(draw)
    return () => {
      unwatch()
      sizes.disconnect()
      plot.current?.destroy()
    }
  }, [])
  useEffect(() => plot.current?.setData(makeData(latest.current)), [times, values])
  return <div class="plot" ref={box} role="img" aria-label={describe(title, values, format)} />
}

const makeData = ({ times, values }: PlotProps): uPlot.AlignedData => [times.map((at) => at / 1000), [...values]]

function makeOptions(
  { colour = 'accent', kind = 'line', format, isWhole = false }: PlotProps,
  place: HTMLElement,
): uPlot.Options {
  const read = (name: string) => getComputedStyle(place).getPropertyValue(`--${name}`).trim()
  const stroke = read(colour)
  const axis = { stroke: read('muted'), grid: { stroke: read('grid'), width: 1 }, ticks: { show: false } }
  const font = `11px ${read('sans')}`
  return {
    width: Math.max(120, place.clientWidth),
    height,
    // The last time of the axis needs room.
    padding: [6, 18, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { setScale: false, x: false, y: false } },
    scales: {
      x: { time: true, range: (_, __, max) => lastHour(max) },
      y: { range: (_, __, max) => [0, roundUp(max)] },
    },
    axes: [
      { ...axis, font, size: 22, space: 70, values: (_, splits) => splits.map(formatMinute) },
      {
        ...axis,
        font,
        size: 52,
        space: 26,
        ...(isWhole ? { incrs: wholeSteps } : {}),
        values: (_, splits) => splits.map((value) => format(value)),
      },
    ],
    series: [
      {},
      {
        stroke,
        width: 1.5,
        fill: `${stroke}22`,
        spanGaps: kind === 'line',
        points: { show: kind === 'bars', size: 4, fill: stroke },
        ...(kind === 'bars' && uPlot.paths.bars !== undefined
          ? { paths: uPlot.paths.bars({ size: [0.8, 6, 1] }) }
          : {}),
      },
    ],
  }
}

/** `end` is null while there are no samples. */
function lastHour(end: number | null): [number, number] {
  const to = end ?? Date.now() / 1000
  return [to - 3600, to]
}

const wholeSteps = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((factor) => factor * 10 ** power))

const formatMinute = (seconds: number): string =>
  new Date(seconds * 1000).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' })

/** A scale that a person can read, with room above the largest value. */
function roundUp(max: number | null): number {
  if (max === null || !(max > 0)) return 1
  const step = 10 ** Math.floor(Math.log10(max))
  return ([1, 2, 3, 5, 8, 10, 12].find((factor) => factor * step >= max * 1.05) ?? 20) * step
}

function describe(title: string, values: readonly (number | null)[], format: (value: number) => string): string {
  const known = values.filter((value) => value !== null)
  const last = known.at(-1)
  if (last === undefined) return `${title}: no values in the last hour`
  const [least, most] = [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))]
  return `${title} over the last hour: now ${format(last)}, least ${format(least)}, most ${format(most)}`
}
