// Prints what bench/nftables.ts has measured as Markdown tables.

export interface Figures {
  readonly coldMs: number | undefined
  readonly coldCpuMs: number
  readonly changeMs: readonly number[]
  readonly changeCpuMicros: number
  /** After thousands of changes, when V8 has compiled the hot code. */
  readonly warmCpuMicros: number
  /** The same with a hundred changes at once. */
  readonly burstCpuMicros: number
  readonly rssMb: number
  readonly rssAfterMb: number
  readonly kernelMb: number
  readonly holds: Holds | undefined
  /** CPU of a program that only reads and parses the same changes. */
  readonly readerCpuMicros: number
  readonly table: TableCost | undefined
}

/** CPU ms of a process, of its main thread, and of the main thread in the kernel; see nftables-table.ts. */
type Part = Readonly<Record<'all' | 'main' | 'kernel', number>>
export type TableCost = Readonly<Record<'written' | 'read', Part>>

/** The longest times for which the event loop was held, in ms. */
export interface Holds {
  readonly first: number
  readonly steady: number
  readonly adoption: number
  /** One transaction that replaces another proxy's table by ours. */
  readonly exchange: number
}

/** Time of `connect` in µs; `added` are draws of the difference, from which its error follows. */
export interface Latency {
  readonly direct: number
  readonly service: number
  readonly added: readonly number[]
}

/** A proxy with its figures. */
interface Reported {
  readonly name: string
  readonly figures: Figures
}

interface Run {
  readonly services: number
  readonly endpoints: number
  /** Limit of a cold start. */
  readonly limitMs: number
}

/** Prints a table with a column per proxy; a string is the name of a proxy that was not run. */
export function printFigures(run: Run, proxies: readonly (Reported | string)[]): void {
  const rows: readonly (readonly [string, (figures: Figures) => number | undefined, string])[] = [
    ['cold start to traffic on the last service', (f) => f.coldMs, 'ms'],
    ['CPU of the cold start, programs it runs included', (f) => f.coldCpuMs, 'ms'],
    ['CPU of writing the table alone', (f) => f.table?.written.all, 'ms'],
    ['  of which the main thread', (f) => f.table?.written.main, 'ms'],
    ['    of which in the kernel', (f) => f.table?.written.kernel, 'ms'],
    ['CPU of reading it back after a kill', (f) => f.table?.read.all, 'ms'],
    ['endpoint change, API write to first packet, p50', (f) => at(f.changeMs, 0.5), 'ms'],
    ['endpoint change, API write to first packet, p99', (f) => at(f.changeMs, 0.99), 'ms'],
    ['CPU per change, the first ones', (f) => f.changeCpuMicros, 'µs'],
    ['CPU per change, after 4,000', (f) => f.warmCpuMicros, 'µs'],
    ['CPU per change, 100 at once', (f) => f.burstCpuMicros, 'µs'],
    ['CPU per change of a program that only reads and parses it', (f) => f.readerCpuMicros, 'µs'],
    ['RSS after the start', (f) => f.rssMb, 'MB'],
    ['RSS after all changes', (f) => f.rssAfterMb, 'MB'],
    ['kernel memory (machine-wide difference)', (f) => f.kernelMb, 'MB'],
    ['longest hold of the event loop, first sync', (f) => f.holds?.first, 'ms'],
    ['longest hold of the event loop, 500 changes', (f) => f.holds?.steady, 'ms'],
    ['longest hold of the event loop, taking over after a kill', (f) => f.holds?.adoption, 'ms'],
    ["longest hold of the event loop, taking another proxy's table over", (f) => f.holds?.exchange, 'ms'],
  ]
  const names = namesOf(proxies)
  console.log(`\n${run.services} services x ${run.endpoints} endpoints`)
  console.log(`| | ${names.join(' | ')} |\n| --- |${names.map(() => ' ---: |').join('')}`)
  const own = proxies[0]
  for (const [title, read, unit] of rows) {
    const base = typeof own === 'object' ? read(own.figures) : undefined
    const cells = proxies.map((proxy, i) => {
      if (typeof proxy === 'string') return 'not run'
      const value = read(proxy.figures)
      if (value === undefined || Number.isNaN(value))
        return proxy.figures.coldMs === undefined ? `> ${run.limitMs / 1000} s` : '-'
      const ratio = i === 0 || base === undefined || !(base > 0) ? '' : ` (${(value / base).toFixed(1)}x)`
      return `${value < 10 ? value.toFixed(2) : value.toFixed(0)} ${unit}${ratio}`
    })
    console.log(`| ${title} | ${cells.join(' | ')} |`)
  }
}

function at(list: readonly number[], share: number): number | undefined {
  return list.toSorted((a, b) => a - b)[Math.floor((list.length - 1) * share)]
}

function namesOf(proxies: readonly (Reported | string)[]): readonly string[] {
  return proxies.map((proxy) => (typeof proxy === 'string' ? proxy : proxy.name))
}

export function printLatencies(
  proxies: readonly (Reported | string)[],
  latencies: readonly (Latency | undefined)[],
): void {
  const shown = (of: (latency: Latency) => string) =>
    latencies.map((latency) => (latency === undefined ? '-' : of(latency))).join(' | ')
  console.log(`\n| first packet | ${namesOf(proxies).join(' | ')} | one DNAT rule |`)
  console.log(`| --- |${latencies.map(() => ' ---: |').join('')}`)
  const between = (draws: readonly number[], digits: number) =>
    `${at(draws, 0.5)?.toFixed(digits)} (${at(draws, 0.025)?.toFixed(digits)} to ${at(draws, 0.975)?.toFixed(digits)})`
  console.log(`| handshake past the service, p50 | ${shown(({ direct }) => `${direct.toFixed(1)} µs`)} |`)
  console.log(`| handshake through it, p50 | ${shown(({ service }) => `${service.toFixed(1)} µs`)} |`)
  console.log(`| added, with 95 % interval | ${shown(({ added }) => `${between(added, 1)} µs`)} |`)
  const ours = latencies[0]?.added ?? []
  const ratio = ({ added }: Latency) =>
    between(
      ours.map((value, i) => value / (added[i] as number)),
      2,
    )
  console.log(`| what Sluice adds as a share of it | ${shown(ratio)} |`)
}
