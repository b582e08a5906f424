// Collects what is wrong with an object, field by field, in the API's own words. Pure.

import type { Cause } from './api-status.ts'

export class Problems {
  readonly causes: Cause[] = []

  required(field: string, why = ''): void {
    this.#add('FieldValueRequired', field, `Required value${why === '' ? '' : `: ${why}`}`)
  }

  invalid(field: string, value: unknown, why: string): void {
    this.#add('FieldValueInvalid', field, `Invalid value: ${shown(value)}: ${why}`)
  }

  /** Nothing if the rule has no complaint. */
  rule(field: string, value: unknown, complaint: string): void {
    if (complaint !== '') this.invalid(field, value, complaint)
  }

  unsupported(field: string, value: unknown, supported: readonly string[]): void {
    const list = [...supported].sort().map((each) => `"${each}"`)
    this.#add(
      'FieldValueNotSupported',
      field,
      `Unsupported value: ${shown(value)}: supported values: ${list.join(', ')}`,
    )
  }

  /** Nothing if the value is one of them. */
  oneOf(field: string, value: unknown, supported: readonly string[]): void {
    if (!supported.includes(value as string)) this.unsupported(field, value, supported)
  }

  forbidden(field: string, why: string): void {
    this.#add('FieldValueForbidden', field, `Forbidden: ${why}`)
  }

  duplicate(field: string, value: unknown): void {
    this.#add('FieldValueDuplicate', field, `Duplicate value: ${shown(value)}`)
  }

  tooMany(field: string, count: number, limit: number): void {
    this.#add('FieldValueTooMany', field, `Too many: ${count}: must have at most ${limit} items`)
  }

  tooLong(field: string, limit: number): void {
    this.#add('FieldValueTooLong', field, `Too long: may not be more than ${limit} bytes`)
  }

  #add(reason: string, field: string, message: string): void {
    this.causes.push({ reason, message, field })
  }
}

function shown(value: unknown): string {
  const text = JSON.stringify(value) ?? 'null'
  return text.length <= 500 ? text : `${text.slice(0, 497)}...`
}
