// How a metric is declared: name, type, labels, buckets and help text. The registry of the HTTP server is elsewhere. Pure.

export interface MetricDeclaration {
  readonly name: string
  readonly type: 'counter' | 'gauge' | 'histogram'
  readonly labels: readonly string[]
  readonly help: string
  readonly buckets?: BucketSet
  /** The nfacct object whose packets are read at each scrape. The metric is not registered where the kernel has no nfacct. */
  readonly nfacct?: string
  /** ALPHA if absent; '' for metrics of the process, whose help texts name none. */
  readonly stability?: 'ALPHA' | 'BETA' | 'STABLE' | ''
}

type BucketSet = keyof typeof bucketSets

const range = (from: number, to: number, step: number): number[] =>
  Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, i) => from + i * step)

export const bucketSets = {
  /** 1 ms to 16 s, each bucket twice as long as the one before. */
  EXP: range(0, 14, 1).map((i) => 2 ** i / 1000),
  /** Network programming latency: fine below a minute, coarse up to five minutes. */
  NPL: [0.25, 0.5, ...range(1, 59, 1), ...range(60, 115, 5), ...range(120, 300, 30)],
  /** Requests to the API server. */
  REQUEST: [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60],
  /** Sizes of bodies, 64 B to 16 MiB. */
  SIZE: [64, 256, 512, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216],
  /** Collections of garbage. */
  COLLECTION: [0.001, 0.01, 0.1, 1, 2, 5],
  /** Lifetimes of certificates, ten minutes to four years. */
  ROTATION: [600, 1800, 3600, 14_400, 86_400, 604_800, 2_592_000, 7_776_000, 15_552_000, 31_104_000, 124_416_000],
} as const satisfies Record<string, readonly number[]>

type Options = Partial<Pick<MetricDeclaration, 'buckets' | 'nfacct' | 'stability'>>

const declare =
  (type: MetricDeclaration['type']) =>
  (name: string, labels: readonly string[], help: string, options: Options = {}): MetricDeclaration => ({
    name,
    type,
    labels,
    help,
    ...options,
  })

export const counter = declare('counter')
export const gauge = declare('gauge')
export const histogram = declare('histogram')
