// OpenMetrics: who gets it, and that it has the same series as the text format. test/e2e/monitoring.test.ts has the real Prometheus read it.

import { describe, expect, it } from 'vitest'
import { findMode } from '../../src/backend/modes.ts'
import { createMetrics } from '../../src/http/metrics.ts'
import { prefersOpenMetrics, toOpenMetrics } from '../../src/http/pages/open-metrics.ts'
import { silentLogger as log } from '../../src/lib/log.ts'

describe('the Accept header', () => {
  it.each([
    // Prometheus 2.42 and 3.0.
    [
      'application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1',
      true,
    ],
    [
      'application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.2',
      true,
    ],
    ['application/openmetrics-text', true],
    ['text/plain;q=1,application/openmetrics-text;version="1.0.0";q=0.9', false],
    ['application/openmetrics-text;version=2.0.0', false],
    ['application/openmetrics-text;q=0', false],
    ['*/*', false],
    ['text/plain', false],
    ['', false],
    [undefined, false],
  ])('%s', (accept, expected) => {
    expect(prefersOpenMetrics(accept)).toBe(expected)
  })
})

/** What each type adds to the name of its family. */
const suffixes: Readonly<Record<string, readonly string[]>> = {
  counter: ['_total'],
  gauge: [''],
  unknown: [''],
  summary: ['', '_sum', '_count'],
  histogram: ['_bucket', '_sum', '_count'],
}

/** Returns the lines of samples. Throws where a sample is outside its family, or the text is not OpenMetrics. */
function readSamples(text: string): readonly string[] {
  if (!text.endsWith('\n# EOF\n')) throw new Error('the end is missing')
  let [family, type] = ['', '']
  const seen = new Set<string>()
  const samples: string[] = []
  for (const line of text.slice(0, -'# EOF\n'.length).split('\n').slice(0, -1)) {
    const [, keyword, name = '', rest = ''] = /^# (TYPE|HELP) (\S+) (.*)$/.exec(line) ?? []
    if (keyword === 'TYPE') {
      if (seen.has(name)) throw new Error(`twice: ${line}`)
      seen.add(name)
      ;[family, type] = [name, rest]
    } else if (keyword === 'HELP') {
      if (name !== family || !/^(?:[^"\\]|\\["\\n])*$/.test(rest)) throw new Error(`not a valid text: ${line}`)
    } else {
      const sample = /^[a-zA-Z_:][\w:]*/.exec(line)?.[0] ?? ''
      if (!suffixes[type]?.some((suffix) => sample === family + suffix)) throw new Error(`outside its family: ${line}`)
      samples.push(line)
    }
  }
  return samples
}

describe('OpenMetrics', () => {
  it('has the series and values of the text format, each in its family', async () => {
    const version = { kubernetes: 'v1.36.4', sluice: 'a "quoted" \\ version' }
    const metrics = createMetrics({ mode: findMode('nftables'), version, log })
    metrics.answered('healthz', 200)
    metrics.conntrack(4, 12, 3)
    const text = await metrics.text()
    const samples = readSamples(toOpenMetrics(text))
    expect(samples).toEqual(text.split('\n').filter((line) => line !== '' && !line.startsWith('#')))
    expect(samples).toContain('kubeproxy_proxy_healthz_total{code="200"} 1')
    expect(samples.length).toBeGreaterThan(50)
    expect(readSamples(toOpenMetrics(await metrics.slis())).length).toBeGreaterThan(0)
  })

  it('names a counter without the suffix of its series, and a counter without that suffix is of unknown type', () => {
    const text = '# HELP a_total The "a".\n# TYPE a_total counter\na_total 1\n\n# HELP b Some.\n# TYPE b counter\nb 2\n'
    expect(toOpenMetrics(text)).toBe(
      '# TYPE a counter\n# HELP a The \\"a\\".\na_total 1\n# TYPE b unknown\n# HELP b Some.\nb 2\n# EOF\n',
    )
  })
})
