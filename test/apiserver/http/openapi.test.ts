import { describe, expect, it } from 'vitest'
import { objectDescriptions } from '../../../src/apiserver/http/object-descriptions.ts'
import { openApiIndex, openApiV2, openApiV3 } from '../../../src/apiserver/http/openapi.ts'
import { recordDescriptions } from '../../../src/apiserver/http/record-descriptions.ts'

interface Definition {
  readonly description?: string
  readonly properties: Readonly<Record<string, { readonly description?: string }>>
}

const { definitions } = JSON.parse(openApiV2()) as { definitions: Readonly<Record<string, Definition>> }
const own = Object.entries(definitions).filter(([name]) => !name.endsWith('List'))

describe('the texts of kubectl explain', () => {
  it('describe every object and every field that is served', () => {
    const missing = own.flatMap(([name, { description, properties }]) => [
      ...(description === undefined ? [name] : []),
      ...Object.entries(properties).flatMap(([field, of]) =>
        of.description === undefined ? [`${name}.${field}`] : [],
      ),
    ])
    expect(missing).toEqual([])
  })

  it('describe nothing else', () => {
    const stray = Object.entries({ ...objectDescriptions, ...recordDescriptions }).flatMap(([name, fields]) =>
      Object.keys(fields)
        .filter(
          (field) => definitions[name] === undefined || (field !== '' && !(field in definitions[name].properties)),
        )
        .map((field) => `${name}.${field}`),
    )
    expect(stray).toEqual([])
  })

  it('are sentences', () => {
    for (const fields of Object.values({ ...objectDescriptions, ...recordDescriptions })) {
      for (const text of Object.values(fields)) expect(text).toMatch(/^[A-Za-z].*[.?]/)
    }
  })

  it('are in the documents of every group', () => {
    const { paths } = JSON.parse(openApiIndex()) as { paths: Readonly<Record<string, unknown>> }
    expect(Object.keys(paths)).toContain('apis/authorization.k8s.io/v1')
    for (const path of Object.keys(paths)) expect(openApiV3(path)).toContain('"description"')
  })
})
