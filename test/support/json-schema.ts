// Checks a value against a JSON Schema, as far as the schema of the commands uses the language. Throws at a keyword it does not know.

interface JsonSchema {
  readonly [keyword: string]: unknown
}

const known = new Set([
  ...['$schema', '$defs', '$ref', 'title', 'description', 'type', 'format', 'enum', 'anyOf'],
  ...['items', 'properties', 'required', 'additionalProperties'],
])

/** Returns one sentence per violation, each with the path of the value. */
export function findViolations(root: JsonSchema, value: unknown): readonly string[] {
  const check = (schema: JsonSchema, at: unknown, path: string): readonly string[] => {
    for (const keyword of Object.keys(schema)) if (!known.has(keyword)) throw new Error(`unknown keyword ${keyword}`)
    if (typeof schema.$ref === 'string') return check(resolve(root, schema.$ref), at, path)
    if (Array.isArray(schema.anyOf)) return checkAny(schema.anyOf as JsonSchema[], at, path)
    if (Array.isArray(schema.enum)) {
      return schema.enum.includes(at) ? [] : [`${path}: ${JSON.stringify(at)} is none of ${schema.enum.join(', ')}`]
    }
    return checkTyped(schema, at, path)
  }
  const checkTyped = (schema: JsonSchema, at: unknown, path: string): readonly string[] => {
    if (!hasType(schema.type as string, at)) return [`${path}: ${JSON.stringify(at)} is not of type ${schema.type}`]
    if (schema.format === 'date-time' && !rfc3339.test(at as string)) return [`${path}: ${at} is not an RFC 3339 time`]
    if (schema.type === 'object') return checkObject(schema, at as Record<string, unknown>, path)
    if (schema.type !== 'array') return []
    return (at as unknown[]).flatMap((item, i) => check(schema.items as JsonSchema, item, `${path}[${i}]`))
  }
  const checkAny = (schemas: readonly JsonSchema[], at: unknown, path: string): readonly string[] => {
    const results = schemas.map((schema) => check(schema, at, path))
    return results.find((found) => found.length === 0) ?? results.sort((a, b) => a.length - b.length)[0] ?? []
  }
  const checkObject = (schema: JsonSchema, at: Record<string, unknown>, path: string): readonly string[] => {
    const properties = schema.properties as Record<string, JsonSchema>
    const absent = (schema.required as string[]).filter((name) => !Object.hasOwn(at, name))
    return [
      ...absent.map((name) => `${path}: has no ${name}`),
      ...Object.entries(at).flatMap(([name, member]) =>
        properties[name] === undefined
          ? [`${path}: ${name} is not described`]
          : check(properties[name], member, `${path}.${name}`),
      ),
    ]
  }
  return check(root, value, '$')
}

const rfc3339 = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/

function hasType(type: string, value: unknown): boolean {
  switch (type) {
    case 'integer':
      return Number.isInteger(value)
    case 'array':
      return Array.isArray(value)
    case 'null':
      return value === null
    case 'object':
      return typeof value === 'object' && value !== null && !Array.isArray(value)
    default:
      // string, number and boolean have the same names in both languages.
      return typeof value === type
  }
}

function resolve(root: JsonSchema, reference: string): JsonSchema {
  const name = reference.replace('#/$defs/', '')
  const found = (root.$defs as Record<string, JsonSchema>)[name]
  if (found === undefined) throw new Error(`the schema has no ${name}`)
  return found
}
