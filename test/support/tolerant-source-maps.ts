// Keeps vitest alive when the stack of an error names a file whose source map comment is not valid. Imported by vitest.config.ts.
//
// vitest looks for a source map in every file that a stack names, also in those of a child process whose stderr is part of the
// error message. The files of tsx contain the text of such a comment as a string, without a map behind it. vitest 4.1 decodes that,
// throws "Unexpected token ... is not valid JSON" while it formats the error, and loses the result of the test.

import { createRequire } from 'node:module'

interface SourceMapReader {
  fromSource(code: string): unknown
}

const reader = createRequire(import.meta.url)('convert-source-map') as SourceMapReader
const read = reader.fromSource

reader.fromSource = (code) => {
  try {
    return read(code)
  } catch {
    return null
  }
}
