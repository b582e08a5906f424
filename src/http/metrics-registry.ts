// Declared metrics made live in prom-client: by name, silent for those that the mode in use does not have.

import { Counter, Gauge, Histogram, Registry } from 'prom-client'
import { bucketSets, type MetricDeclaration } from '../lib/metric-declaration.ts'

export type MetricLabels = Readonly<Record<string, string>>

/** One series that changes far more often than anybody looks: a number until then. */
export interface Series {
  set(value: number): void
  add(by?: number): void
}

/** Of a histogram, before they are told. */
const heldValues = 500

export class Instruments {
  readonly registry = new Registry()
  readonly #due = new Set<() => void>()
  readonly #live = new Map<string, Counter | Gauge | Histogram>()

  constructor(declarations: readonly MetricDeclaration[]) {
    for (const declaration of declarations) this.#live.set(declaration.name, this.#make(declaration))
  }

  has(name: string): boolean {
    return this.#live.has(name)
  }

  /** A counter, which is added to rather than set. */
  counts(name: string): boolean {
    return this.#live.get(name) instanceof Counter
  }

  add(name: string, labels: MetricLabels, by = 1): void {
    const metric = this.#live.get(name)
    if (metric instanceof Counter) metric.inc(labels, by)
  }

  /** Not there before its first value. `flush` is to come before anybody looks. */
  series(name: string, labels: MetricLabels): Series {
    let value = 0
    let added = 0
    const tellValue = () => this.set(name, labels, value)
    const tellAdded = () => {
      this.add(name, labels, added)
      added = 0
    }
    return {
      set: (now) => {
        value = now
        this.#due.add(tellValue)
      },
      add: (by = 1) => {
        added += by
        this.#due.add(tellAdded)
      },
    }
  }

  /** The same for a histogram: values wait until somebody looks, or until there are many. */
  histogram(name: string, labels: MetricLabels): (value: number) => void {
    const values: number[] = []
    const tell = () => {
      for (const value of values) this.observe(name, labels, value)
      values.length = 0
    }
    return (value) => {
      values.push(value)
      if (values.length < heldValues) this.#due.add(tell)
      else tell()
    }
  }

  flush(): void {
    for (const tell of this.#due) tell()
    this.#due.clear()
  }

  set(name: string, labels: MetricLabels, value: number): void {
    const metric = this.#live.get(name)
    if (metric instanceof Gauge) metric.set(labels, value)
    // A counter that somebody else keeps, the kernel for one: its value is read, not counted.
    if (metric instanceof Counter) {
      metric.remove(labels)
      metric.inc(labels, value)
    }
  }

  /** All series of a counter that somebody else keeps: those not given are gone. */
  replace(name: string, series: Iterable<readonly [labels: MetricLabels, value: number]>): void {
    const metric = this.#live.get(name)
    if (!(metric instanceof Counter)) return
    metric.reset()
    for (const [labels, value] of series) metric.inc(labels, value)
  }

  remove(name: string, labels: MetricLabels): void {
    this.#live.get(name)?.remove(labels)
  }

  observe(name: string, labels: MetricLabels, value: number): void {
    const metric = this.#live.get(name)
    if (metric instanceof Histogram) metric.observe(labels, value)
  }

  #make({ name, type, labels, buckets, stability, help }: MetricDeclaration): Counter | Gauge | Histogram {
    const options = { name, help: `[${stability ?? 'ALPHA'}] ${help}`, labelNames: labels, registers: [this.registry] }
    if (type === 'counter') return new Counter(options)
    if (type === 'gauge') return new Gauge(options)
    return new Histogram({ ...options, buckets: [...bucketSets[buckets ?? 'EXP']] })
  }
}
