// Checks our own configuration file: defaults, values, and errors that name file, line and field.

import { join } from 'node:path'
import { expect, it } from 'vitest'
import {
  defaultSluiceConfig,
  formatSluiceConfigDocs,
  loadSluiceConfig,
  replaceLiveFields,
} from '../../src/config/sluice-config.ts'

const header = 'apiVersion: sluice/v1alpha1\nkind: SluiceConfiguration\n'

it('has a default for every setting', () => {
  expect(loadSluiceConfig('s.yaml', header)).toEqual(defaultSluiceConfig())
  expect(defaultSluiceConfig().addresses.precedence).toBe('kind')
  expect(defaultSluiceConfig().apiServer.silence).toBe(300_000)
})

it('reads values', () => {
  const text = `${header}addresses: { precedence: age }\napiServer: { silence: 90s }\nlimits: { portsPerService: 7 }\n`
  expect(loadSluiceConfig('s.yaml', text)).toMatchObject({
    addresses: { precedence: 'age' },
    apiServer: { silence: 90_000 },
    limits: { portsPerService: 7, frontendsPerService: defaultSluiceConfig().limits.frontendsPerService },
  })
})

it.each([
  ['addresses: { precedence: size }', 's.yaml:3: addresses.precedence: given "size", allowed: kind, age'],
  ['limits:\n  portsPerService: 0', 's.yaml:4: limits.portsPerService: given 0, allowed: a value greater than 0'],
  [
    'limits:\n  portsPerService: many',
    's.yaml:4: limits.portsPerService: given "many", allowed: a whole number of 32 bits',
  ],
  ['limits:\n  portsPerServce: 5', 's.yaml:4: limits.portsPerServce: unknown field'],
  ['apiServer: { silence: soon }', 's.yaml:3: apiServer.silence: given "soon", allowed: a duration'],
])('refuses %j', (line, message) => {
  expect(() => loadSluiceConfig('s.yaml', `${header}${line}\n`)).toThrow(message)
})

it('refuses another kind of document', () => {
  expect(() => loadSluiceConfig('s.yaml', 'apiVersion: v1\nkind: Pod\n')).toThrow('s.yaml:1: apiVersion: given "v1"')
})

it.each([
  ['on', 'on'],
  ['off', 'off'],
  ['true', 'on'],
  ['"on"', 'on'],
])('reads the switch %s as %s, which YAML takes for a boolean without quotes', (given, expected) => {
  const { outliers } = loadSluiceConfig('s.yaml', `${header}outliers: { ejection: ${given} }\n`)
  expect(outliers.ejection).toBe(expected)
})

it('replaces in place what may change while the proxy runs, and names the rest', () => {
  const config = defaultSluiceConfig()
  const { outliers } = config
  const text = `${header}outliers: { ejection: "on" }\nlimits: { portsPerService: 7 }\n`
  expect(replaceLiveFields(config, loadSluiceConfig('s.yaml', text))).toEqual({
    changed: ['outliers.ejection'],
    waiting: ['limits.portsPerService'],
  })
  expect(outliers.ejection).toBe('on')
  expect(config.limits).toEqual(defaultSluiceConfig().limits)
  expect(replaceLiveFields(config, config)).toEqual({ changed: [], waiting: [] })
})

it('is documented', async () => {
  await expect(formatSluiceConfigDocs()).toMatchFileSnapshot(join(import.meta.dirname, '../../docs/sluice-config.md'))
})
