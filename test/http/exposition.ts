// Parses Prometheus' text format strictly, so that a test fails where Prometheus would.

export interface Family {
  readonly type: string
  readonly help: string
  readonly samples: {
    readonly name: string
    readonly labels: Readonly<Record<string, string>>
    readonly value: number
  }[]
}

const commentLine = /^# (HELP|TYPE) (\S+) (.*)$/
const sampleLine = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (NaN|[+-]Inf|[-+0-9.eE]+)$/
const labelPair = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\[\\"n])*)"(?:,|$)/y

/** What was read so far. */
interface ParsedLines {
  readonly families: Map<string, Family>
  /** Names and labels of all samples. */
  readonly series: Set<string>
  /** The name and text of the last HELP line. */
  name: string
  help: string
}

/** Throws for a malformed line, for a sample outside its family, and for a series that occurs twice. */
export function parseExposition(text: string): Map<string, Family> {
  if (!text.endsWith('\n')) throw new Error('no newline at the end')
  const parsed: ParsedLines = { families: new Map(), series: new Set(), name: '', help: '' }
  for (const line of text.split('\n').filter((one) => one !== '')) {
    const [comment, keyword, name = '', rest = ''] = commentLine.exec(line) ?? []
    if (comment === undefined) addSample(parsed, line)
    else if (keyword === 'HELP') Object.assign(parsed, { name, help: rest })
    else addFamily(parsed, name, rest)
  }
  return parsed.families
}

function addFamily({ families, name, help }: ParsedLines, typedName: string, type: string): void {
  if (typedName !== name || families.has(name)) throw new Error(`misplaced: # TYPE ${typedName} ${type}`)
  families.set(name, { type, help, samples: [] })
}

const suffixes: Readonly<Record<string, readonly string[]>> = {
  histogram: ['_bucket', '_sum', '_count'],
  summary: ['', '_sum', '_count'],
}

function addSample({ families, series, name }: ParsedLines, line: string): void {
  const [sample, sampleName = '', labels = '', value = ''] = sampleLine.exec(line) ?? []
  if (sample === undefined) throw new Error(`not a sample: ${line}`)
  const family = families.get(name)
  const allowed = suffixes[family?.type ?? ''] ?? ['']
  if (family === undefined || !allowed.some((suffix) => sampleName === `${name}${suffix}`)) {
    throw new Error(`outside its family: ${line}`)
  }
  const key = line.slice(0, line.lastIndexOf(' '))
  if (series.has(key)) throw new Error(`given twice: ${key}`)
  series.add(key)
  family.samples.push({
    name: sampleName,
    labels: parseLabels(labels),
    value: Number(value.replace('Inf', 'Infinity')),
  })
}

function parseLabels(text: string): Record<string, string> {
  const labels: Record<string, string> = {}
  labelPair.lastIndex = 0
  while (labelPair.lastIndex < text.length) {
    const match = labelPair.exec(text)
    if (match === null) throw new Error(`not labels: ${text}`)
    labels[match[1] as string] = match[2] as string
  }
  return labels
}
