// Translates the text format of Prometheus to OpenMetrics 1.0, and chooses between them by the Accept header. The series are the same in
// both formats, labels included, so that a client may change its mind without new series. Pure.

export const openMetricsType = 'application/openmetrics-text; version=1.0.0; charset=utf-8'

const versions: ReadonlySet<string> = new Set(['', '0.0.1', '1.0.0'])

/** True if the client prefers OpenMetrics, or likes it as much as text. A client that accepts anything gets text. */
export function prefersOpenMetrics(accept = ''): boolean {
  let [text, open] = [0, 0]
  for (const range of accept.split(',')) {
    const [type = '', ...parameters] = range.split(';').map((part) => part.trim().toLowerCase())
    const read = (name: string) => parameters.find((one) => one.startsWith(`${name}=`))?.slice(name.length + 1)
    const quality = Number(read('q') ?? 1)
    const version = (read('version') ?? '').replaceAll('"', '')
    if (type === 'application/openmetrics-text' && versions.has(version)) open = Math.max(open, quality)
    else if (type === 'text/plain') text = Math.max(text, quality)
  }
  return open > 0 && open >= text
}

/** Turns the usual text of metrics into OpenMetrics. */
export function toOpenMetrics(text: string): string {
  const lines: string[] = []
  let help = ''
  for (const line of text.split('\n')) {
    if (line === '') continue
    const comment = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line)
    if (comment === null) lines.push(line)
    else if (comment[1] === 'HELP') help = comment[3] ?? ''
    else lines.push(...describeFamily(comment[2] ?? '', comment[3] ?? '', help))
  }
  return `${lines.join('\n')}\n# EOF\n`
}

/** A counter is named without the `_total` of its series. One whose series have another name cannot be a counter here. */
function describeFamily(name: string, type: string, help: string): readonly string[] {
  const isTotal = name.endsWith('_total')
  const family = type === 'counter' && isTotal ? name.slice(0, -'_total'.length) : name
  const kind = type === 'counter' && !isTotal ? 'unknown' : type
  return [`# TYPE ${family} ${kind}`, `# HELP ${family} ${help.replaceAll('"', '\\"')}`]
}
