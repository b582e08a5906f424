// One metric with its series, and its text in the format of Prometheus. Most metrics do not change between two scrapes, so a text is kept
// until a value changes.

import type { MetricDeclaration } from '../../lib/metric-declaration.ts'

export type MetricLabels = Readonly<Record<string, string>>

type Declared = Pick<MetricDeclaration, 'name' | 'type' | 'labels' | 'help'>

/** A series: how it is written, and its value. */
interface NumberSeries {
  /** The name with its labels, as it begins the line. */
  readonly head: string
  value: number
}

abstract class Metric<S> {
  protected readonly name: string
  protected readonly labelNames: readonly string[]
  protected series = new Map<string, S>()
  /** Undefined if something has changed since it was made. */
  #text: string | undefined
  readonly #comments: string

  constructor({ name, type, labels, help }: Declared) {
    this.name = name
    this.labelNames = labels
    this.#comments = `# HELP ${name} ${escapeText(help)}\n# TYPE ${name} ${type}`
  }

  text(): string {
    this.#text ??= this.#makeText()
    return this.#text
  }

  protected abstract write(series: S, lines: string[]): void

  protected noteChange(): void {
    this.#text = undefined
  }

  /** Two sets of labels are the same series if all values are equal, in whichever order the labels are given. */
  protected keyOf(labels: MetricLabels): string {
    let key = ''
    for (const name of this.labelNames) key += `${labels[name] ?? ''}\0`
    return key
  }

  /** The labels as they are written, with a comma between them. */
  protected formatLabels(labels: MetricLabels): string {
    const parts = Object.entries(labels).map(([label, value]) => {
      if (!this.labelNames.includes(label)) throw new Error(`the metric ${this.name} has no label ${label}`)
      return `${label}="${escapeText(value).replaceAll('"', '\\"')}"`
    })
    return parts.join(',')
  }

  #makeText(): string {
    const lines = [this.#comments]
    for (const one of this.series.values()) this.write(one, lines)
    return lines.join('\n')
  }
}

/** A counter or a gauge. Without labels it has its series from the start. */
export class NumberMetric extends Metric<NumberSeries> {
  readonly isCounter: boolean

  constructor(declared: Declared) {
    super(declared)
    this.isCounter = declared.type === 'counter'
    this.reset()
  }

  add(labels: MetricLabels, by: number): void {
    const series = this.#find(labels)
    series.value += by
    this.noteChange()
  }

  set(labels: MetricLabels, value: number): void {
    const isNew = this.labelNames.length > 0 && !this.series.has(this.keyOf(labels))
    const series = this.#find(labels)
    if (series.value === value && !isNew) return
    series.value = value
    this.noteChange()
  }

  /** Series that are not given disappear. Values of the same series are added. */
  replace(values: Iterable<readonly [labels: MetricLabels, value: number]>): void {
    const before = this.series
    this.reset()
    for (const [labels, value] of values) {
      const key = this.keyOf(labels)
      const known = this.series.get(key)
      if (known !== undefined) known.value += value
      else this.series.set(key, { head: before.get(key)?.head ?? this.#makeHead(labels), value })
    }
  }

  reset(): void {
    this.series = new Map(this.labelNames.length === 0 ? [['', { head: this.name, value: 0 }]] : [])
    this.noteChange()
  }

  protected write({ head, value }: NumberSeries, lines: string[]): void {
    lines.push(`${head} ${formatValue(value)}`)
  }

  #find(labels: MetricLabels): NumberSeries {
    const key = this.keyOf(labels)
    const known = this.series.get(key)
    if (known !== undefined) return known
    const series = { head: this.#makeHead(labels), value: 0 }
    this.series.set(key, series)
    return series
  }

  #makeHead(labels: MetricLabels): string {
    const text = this.formatLabels(labels)
    return text === '' ? this.name : `${this.name}{${text}}`
  }
}

interface HistogramSeries {
  readonly labels: string
  /** The values of each bucket alone; those beyond the last bound are in none. */
  readonly counts: number[]
  sum: number
  count: number
}

/** Without labels it has its series from the start, until it is reset. */
export class HistogramMetric extends Metric<HistogramSeries> {
  readonly #bounds: readonly number[]
  /** How the line of each bucket begins, and that of all values at the end. */
  readonly #heads: readonly string[]

  constructor(declared: Declared, bounds: readonly number[]) {
    super(declared)
    this.#bounds = bounds
    this.#heads = [...bounds, '+Inf'].map((bound) => `${this.name}_bucket{le="${bound}"`)
    if (this.labelNames.length === 0) this.series.set('', this.#makeSeries(''))
  }

  observe(labels: MetricLabels, value: number): void {
    const key = this.keyOf(labels)
    let series = this.series.get(key)
    if (series === undefined) {
      series = this.#makeSeries(this.formatLabels(labels))
      this.series.set(key, series)
    }
    series.sum += value
    series.count++
    const bucket = this.#bounds.findIndex((bound) => value <= bound)
    if (bucket >= 0) series.counts[bucket] = (series.counts[bucket] as number) + 1
    this.noteChange()
  }

  reset(): void {
    this.series.clear()
    this.noteChange()
  }

  protected write({ labels, counts, sum, count }: HistogramSeries, lines: string[]): void {
    const end = labels === '' ? '}' : `,${labels}}`
    let below = 0
    for (const [i, head] of this.#heads.entries()) {
      below = counts[i] === undefined ? count : below + counts[i]
      lines.push(`${head}${end} ${below}`)
    }
    const all = labels === '' ? '' : `{${labels}}`
    lines.push(`${this.name}_sum${all} ${formatValue(sum)}`, `${this.name}_count${all} ${count}`)
  }

  #makeSeries(labels: string): HistogramSeries {
    return { labels, counts: this.#bounds.map(() => 0), sum: 0, count: 0 }
  }
}

const escapeText = (text: string): string => text.replaceAll('\\', '\\\\').replaceAll('\n', '\\n')

function formatValue(value: number): string {
  if (value === Number.POSITIVE_INFINITY) return '+Inf'
  return value === Number.NEGATIVE_INFINITY ? '-Inf' : String(value)
}
