import { describe, expectTypeOf, it } from 'vitest'
import type { Config, Document, Unchecked } from '../../src/config/configuration.ts'
import {
  declareField,
  type FieldTree,
  type FlagValues,
  type GivenLeaf,
  type ValidLeaf,
} from '../../src/config/setting.ts'

// The compiler checks these tests: `tsc --noEmit` fails when a type differs.

describe('types that are derived from the settings table', () => {
  it('have a member for each row, at its path', () => {
    const rows = [
      declareField('int32', { path: 'a.b.c', flag: 'a-b-c', default: 1, help: '' }),
      declareField('list', { path: 'a.d', default: [], help: '' }),
      declareField('string', { path: 'word', flag: 'word', default: '', words: ['yes', 'no'], help: '' }),
    ]
    type Row = (typeof rows)[number]
    expectTypeOf<FieldTree<GivenLeaf<Row>>>().toEqualTypeOf<{
      readonly a: { readonly b: { readonly c: number }; readonly d: readonly string[] }
      readonly word: string
    }>()
    expectTypeOf<FieldTree<ValidLeaf<Row>>['word']>().toEqualTypeOf<'yes' | 'no'>()
    expectTypeOf<FlagValues<Row>>().toEqualTypeOf<{ readonly 'a-b-c': number; readonly word: string }>()
  })

  it('narrow a word only after validation', () => {
    expectTypeOf<Unchecked['mode']>().toEqualTypeOf<string>()
    expectTypeOf<Config['mode']>().toEqualTypeOf<'iptables' | 'ipvs' | 'nftables' | 'userspace'>()
    expectTypeOf<Config['logging']['format']>().toEqualTypeOf<'text' | 'json'>()
    expectTypeOf<Config>().toExtend<Unchecked>()
  })

  it('have the fields that a loop declares', () => {
    expectTypeOf<Document['logging']['options']['json']>().toEqualTypeOf<{
      readonly splitStream: boolean
      readonly infoBufferSize: string
    }>()
  })

  it('refuse a default of another kind and a misspelt property', () => {
    // @ts-expect-error: the default of a number is not a text.
    declareField('int32', { path: 'a', default: '1', help: '' })
    // @ts-expect-error: the property is called `omitted`.
    declareField('int32', { path: 'a', default: 1, omited: true, help: '' })
  })
})
