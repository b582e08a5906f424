// A strict reader of Prometheus' text format, so that a test sees what Prometheus would.

export interface Family {
  readonly type: string
  readonly help: string
  readonly samples: {
    readonly name: string
    readonly labels: Readonly<Record<string, string>>
    readonly value: number
  }[]
}

const sampleLine = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (NaN|[+-]Inf|[-+0-9.eE]+)$/
const labelPair = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\[\\"n])*)"(?:,|$)/y

/** Throws on anything that is not well-formed, on a sample outside its family, and on a series given twice. */
export function parseExposition(text: string): Map<string, Family> {
  const families = new Map<string, Family>()
  const seen = new Set<string>()
  let name = ''
  let help = ''
  if (!text.endsWith('\n')) throw new Error('no newline at the end')
  for (const line of text.split('\n')) {
    if (line === '') continue
    const comment = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line)
    if (comment !== null) {
      const [, keyword, about, rest] = comment as unknown as [string, string, string, string]
      if (keyword === 'HELP') {
        name = about
        help = rest
        continue
      }
      if (about !== name || families.has(name)) throw new Error(`misplaced: ${line}`)
      families.set(name, { type: rest, help, samples: [] })
      continue
    }
    const match = sampleLine.exec(line)
    if (match === null) throw new Error(`not a sample: ${line}`)
    const family = families.get(name)
    const sample = match[1] as string
    const suffix = sample.slice(name.length)
    const suffixes = family?.type === 'histogram' ? ['_bucket', '_sum', '_count'] : ['']
    if (family?.type === 'summary') suffixes.push('_sum', '_count')
    if (family === undefined || !sample.startsWith(name) || !suffixes.includes(suffix))
      throw new Error(`outside its family: ${line}`)
    const key = line.slice(0, line.lastIndexOf(' '))
    if (seen.has(key)) throw new Error(`given twice: ${key}`)
    seen.add(key)
    const value = Number((match[3] as string).replace('Inf', 'Infinity'))
    family.samples.push({ name: sample, labels: parseLabels(match[2] ?? ''), value })
  }
  return families
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
