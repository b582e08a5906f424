// Creates the declared metrics and changes them by name. A name that the mode in use does not have is ignored.

import { bucketSets, type MetricDeclaration } from '../../lib/metric-declaration.ts'
import { HistogramMetric, type MetricLabels, NumberMetric } from './metric-series.ts'

/** One series that changes far more often than it is scraped: it is a plain number until the next scrape. */
export interface MetricSeries {
  set(value: number): void
  add(by?: number): void
}

/** The number of values of a histogram that are buffered at most. */
const bufferedValues = 500

export class MetricsRegistry {
  readonly #unwritten = new Set<() => void>()
  readonly #metrics = new Map<string, NumberMetric | HistogramMetric>()

  constructor(declarations: readonly MetricDeclaration[]) {
    for (const declaration of declarations) this.#metrics.set(declaration.name, makeMetric(declaration))
  }

  has(name: string): boolean {
    return this.#metrics.has(name)
  }

  isCounter(name: string): boolean {
    return this.#findNumber(name)?.isCounter === true
  }

  add(name: string, labels: MetricLabels, by = 1): void {
    const metric = this.#findNumber(name)
    if (metric?.isCounter === true) metric.add(labels, by)
  }

  /** The series exists from its first value on. */
  series(name: string, labels: MetricLabels): MetricSeries {
    let value = 0
    let added = 0
    const writeValue = () => this.set(name, labels, value)
    const writeAdded = () => {
      this.add(name, labels, added)
      added = 0
    }
    return {
      set: (newValue) => {
        value = newValue
        this.#unwritten.add(writeValue)
      },
      add: (by = 1) => {
        added += by
        this.#unwritten.add(writeAdded)
      },
    }
  }

  /** Returns a function that observes values: it buffers them until the next scrape, or until there are many. */
  bufferedHistogram(name: string, labels: MetricLabels): (value: number) => void {
    const values: number[] = []
    const writeValues = () => {
      for (const value of values) this.observe(name, labels, value)
      values.length = 0
    }
    return (value) => {
      values.push(value)
      if (values.length < bufferedValues) this.#unwritten.add(writeValues)
      else writeValues()
    }
  }

  /** The text of all metrics for a scrape. */
  text(): string {
    for (const write of this.#unwritten) write()
    this.#unwritten.clear()
    const texts: string[] = []
    for (const metric of this.#metrics.values()) texts.push(metric.text())
    return `${texts.join('\n\n')}\n`
  }

  /** Removes all series. */
  reset(): void {
    for (const metric of this.#metrics.values()) metric.reset()
  }

  /** The kernel keeps some counters itself: such a value is read as a whole, not incremented. */
  set(name: string, labels: MetricLabels, value: number): void {
    this.#findNumber(name)?.set(labels, value)
  }

  /** Replaces all series of a metric whose values are read as a whole; series that are not given disappear. */
  replace(name: string, series: Iterable<readonly [labels: MetricLabels, value: number]>): void {
    this.#findNumber(name)?.replace(series)
  }

  observe(name: string, labels: MetricLabels, value: number): void {
    const metric = this.#metrics.get(name)
    if (metric instanceof HistogramMetric) metric.observe(labels, value)
  }

  #findNumber(name: string): NumberMetric | undefined {
    const metric = this.#metrics.get(name)
    return metric instanceof NumberMetric ? metric : undefined
  }
}

function makeMetric(declaration: MetricDeclaration): NumberMetric | HistogramMetric {
  const { name, type, labels, buckets, stability } = declaration
  const help = stability === '' ? declaration.help : `[${stability ?? 'ALPHA'}] ${declaration.help}`
  const declared = { name, type, labels, help }
  return type === 'histogram' ? new HistogramMetric(declared, bucketSets[buckets ?? 'EXP']) : new NumberMetric(declared)
}
