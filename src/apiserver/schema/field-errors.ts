// Collects what is wrong with an object, field by field, in the words of the real kube-apiserver (its package `field`). Pure.

import type { CauseReason, StatusCause } from './api-status.ts'

export class FieldErrors {
  readonly #causes: StatusCause[] = []

  get causes(): readonly StatusCause[] {
    return this.#causes
  }

  get isEmpty(): boolean {
    return this.#causes.length === 0
  }

  required(field: string, why = ''): void {
    this.#add('FieldValueRequired', field, `Required value${why === '' ? '' : `: ${why}`}`)
  }

  invalid(field: string, value: unknown, why: string): void {
    this.#add('FieldValueInvalid', field, `Invalid value: ${formatValue(value)}: ${why}`)
  }

  /** The supported values are printed in their order. */
  unsupported(field: string, value: unknown, supported: readonly string[]): void {
    const list = supported.map((each) => `"${each}"`)
    this.#add(
      'FieldValueNotSupported',
      field,
      `Unsupported value: ${formatValue(value)}: supported values: ${list.join(', ')}`,
    )
  }

  forbidden(field: string, why: string): void {
    this.#add('FieldValueForbidden', field, `Forbidden: ${why}`)
  }

  duplicate(field: string, value: unknown): void {
    this.#add('FieldValueDuplicate', field, `Duplicate value: ${formatValue(value)}`)
  }

  tooMany(field: string, count: number, limit: number): void {
    this.#add('FieldValueTooMany', field, `Too many: ${count}: must have at most ${limit} items`)
  }

  tooLong(field: string, limit: number): void {
    this.#add('FieldValueTooLong', field, `Too long: may not be more than ${limit} bytes`)
  }

  /** Adds an `invalid` error if the rule (see name-rules.ts) complained: `complaint` is '' for a good value. */
  checkRule(field: string, value: unknown, complaint: string): void {
    if (complaint !== '') this.invalid(field, value, complaint)
  }

  /** Adds an `invalid` error for each complaint. */
  checkRules(field: string, value: unknown, complaints: readonly string[]): void {
    for (const complaint of complaints) this.invalid(field, value, complaint)
  }

  /** Adds an `unsupported` error unless the value is one of the supported ones. */
  checkOneOf(field: string, value: unknown, supported: readonly string[]): void {
    if (typeof value !== 'string' || !supported.includes(value)) this.unsupported(field, value, [...supported].sort())
  }

  #add(reason: CauseReason, field: string, message: string): void {
    this.#causes.push({ reason, message, field })
  }
}

function formatValue(value: unknown): string {
  const json = JSON.stringify(value) ?? 'null'
  return json.length <= 500 ? json : `${json.slice(0, 497)}...`
}
