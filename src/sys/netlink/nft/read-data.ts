// Reads the data of elements and expressions: bytes, or a verdict. Pure.

import type { AttributeReader } from '../message.ts'
import { NFTA_DATA, NFTA_VERDICT } from './attributes.ts'
import { type Verdict, verdictCodes } from './expressions.ts'

/** Reads the data attribute that the reader is at: bytes, a verdict, or undefined if it is neither. */
export function readData(reader: AttributeReader): Uint8Array | Verdict | undefined {
  let found: Uint8Array | Verdict | undefined
  reader.enter()
  while (reader.next()) {
    if (reader.type === NFTA_DATA.VALUE) found = reader.raw()
    else if (reader.type === NFTA_DATA.VERDICT) found = readVerdict(reader)
  }
  reader.leave()
  return found
}

function readVerdict(reader: AttributeReader): Verdict | undefined {
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
