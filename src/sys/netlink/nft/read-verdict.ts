// Reads the verdict of an element. Pure.

import type { AttributeReader } from '../message.ts'
import { NFTA_VERDICT } from './attributes.ts'
import { type Verdict, verdictCodes } from './expressions.ts'

/** Reads the verdict that the reader is at; undefined if it is of a kind that we do not write. */
export function readVerdict(reader: AttributeReader): Verdict | undefined {
  let code = Number.NaN
  let chain = ''
  reader.enter()
  while (reader.next()) {
    if (reader.type === NFTA_VERDICT.CODE) code = reader.i32()
    else if (reader.type === NFTA_VERDICT.CHAIN) chain = reader.text()
  }
  reader.leave()
  switch (code) {
    case verdictCodes.jump:
      return { verdict: 'jump', chain }
    case verdictCodes.goto:
      return { verdict: 'goto', chain }
    case verdictCodes.accept:
      return { verdict: 'accept' }
    case verdictCodes.drop:
      return { verdict: 'drop' }
    case verdictCodes.return:
      return { verdict: 'return' }
    default:
      return undefined
  }
}
