import { describe, expect, it } from 'vitest'
import { regressions } from './conformance.ts'
import { readReport, type SpecResult, type SpecState } from './run-specs.ts'
import { escapeName, shortList } from './spec-lists.ts'

const spec = (LeafNodeText: string, State: string, rest: object = {}) => ({
  ContainerHierarchyTexts: ['[sig-network] Services'],
  LeafNodeText,
  LeafNodeType: 'It',
  RunTime: 2_600_000_000,
  State,
  ...rest,
})

describe('readReport', () => {
  const text = JSON.stringify([
    {
      SpecReports: [
        spec('should serve', 'passed'),
        spec('is not chosen', 'skipped'),
        spec('should panic', 'panicked', { Failure: { Message: 'nil pointer' } }),
        spec('', 'passed', { LeafNodeType: 'SynchronizedBeforeSuite' }),
        spec('needs six nodes', 'skipped', { Failure: { Message: 'needs 6 nodes' } }),
      ],
    },
  ])

  it('returns the specs that ran or skipped themselves, and no others', () => {
    expect(readReport(text).map(({ name, state }) => [name, state])).toEqual([
      ['Services needs six nodes', 'skipped'],
      ['Services should panic', 'failed'],
      ['Services should serve', 'passed'],
    ])
  })

  it('returns seconds and messages', () => {
    expect(readReport(text)[1]).toMatchObject({ seconds: 3, message: 'nil pointer', retried: false })
  })
})

describe('regressions', () => {
  const result = (name: string, state: SpecState): SpecResult => ({
    name,
    state,
    seconds: 1,
    message: '',
    retried: false,
  })

  it('are failures that kube-proxy does not have; a spec that it did not run counts', () => {
    const ours = [result('a', 'failed'), result('b', 'failed'), result('c', 'failed'), result('d', 'passed')]
    const theirs = [result('a', 'failed'), result('b', 'passed'), result('d', 'failed')]
    expect(regressions(ours, theirs).map(({ name }) => name)).toEqual(['b', 'c'])
  })
})

it('chooses a failed spec again by its name', () => {
  const name = 'Services [LinuxOnly] should work (with a port) externalTrafficPolicy=Local'
  expect(name).toMatch(new RegExp(`^${escapeName(name)}$`))
})

it('has only valid patterns in the short list', () => {
  for (const pattern of shortList) expect(() => new RegExp(pattern)).not.toThrow()
})
