// Registers the declared metrics in prom-client and changes them by name. A name that the mode in use does not have is ignored.

import { Counter, Gauge, Histogram, Registry } from 'prom-client'
import { bucketSets, type MetricDeclaration } from '../lib/metric-declaration.ts'

export type MetricLabels = Readonly<Record<string, string>>

/** One series that changes far more often than it is scraped: it is a plain number until the next scrape. */
export interface MetricSeries {
  set(value: number): void
  add(by?: number): void
}

/** The number of values of a histogram that are buffered at most. */
const bufferedValues = 500

export class MetricsRegistry {
  readonly #prometheus = new Registry()
  readonly #unwritten = new Set<() => void>()
  /** The texts of metrics that have not changed since they were made: most of them, between two scrapes. */
  readonly #texts = new Map<string, Promise<string>>()
  readonly #metrics = new Map<string, Counter | Gauge | Histogram>()

  constructor(declarations: readonly MetricDeclaration[]) {
    for (const declaration of declarations) this.#metrics.set(declaration.name, this.#register(declaration))
  }

  has(name: string): boolean {
    return this.#metrics.has(name)
  }

  isCounter(name: string): boolean {
    return this.#metrics.get(name) instanceof Counter
  }

  add(name: string, labels: MetricLabels, by = 1): void {
    const metric = this.#change(name)
    if (metric instanceof Counter) metric.inc(labels, by)
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
  async text(): Promise<string> {
    for (const write of this.#unwritten) write()
    this.#unwritten.clear()
    const texts = await Promise.all([...this.#metrics.keys()].map((name) => this.#textOf(name)))
    return `${texts.join('\n\n')}\n`
  }

  #textOf(name: string): Promise<string> {
    const known = this.#texts.get(name)
    if (known !== undefined) return known
    // A change while the text is made removes it from the map again.
    const text = this.#prometheus.getSingleMetricAsString(name)
    this.#texts.set(name, text)
    return text
  }

  /** Removes all series. */
  reset(): void {
    this.#prometheus.resetMetrics()
    this.#texts.clear()
  }

  /** Returns a metric whose text will not be valid any more. */
  #change(name: string): Counter | Gauge | Histogram | undefined {
    this.#texts.delete(name)
    return this.#metrics.get(name)
  }

  set(name: string, labels: MetricLabels, value: number): void {
    const metric = this.#change(name)
    if (metric instanceof Gauge) metric.set(labels, value)
    // The kernel keeps some counters itself: such a value is read as a whole, not incremented.
    if (metric instanceof Counter) {
      metric.remove(labels)
      metric.inc(labels, value)
    }
  }

  /** Replaces all series of a counter that the kernel keeps; series that are not given disappear. */
  replace(name: string, series: Iterable<readonly [labels: MetricLabels, value: number]>): void {
    const metric = this.#change(name)
    if (!(metric instanceof Counter)) return
    metric.reset()
    for (const [labels, value] of series) metric.inc(labels, value)
  }

  observe(name: string, labels: MetricLabels, value: number): void {
    const metric = this.#change(name)
    if (metric instanceof Histogram) metric.observe(labels, value)
  }

  #register({ name, type, labels, buckets, stability, help }: MetricDeclaration): Counter | Gauge | Histogram {
    const text = `[${stability ?? 'ALPHA'}] ${help}`
    const options = { name, help: text, labelNames: labels, registers: [this.#prometheus] }
    if (type === 'counter') return new Counter(options)
    if (type === 'gauge') return new Gauge(options)
    return new Histogram({ ...options, buckets: [...bucketSets[buckets ?? 'EXP']] })
  }
}
