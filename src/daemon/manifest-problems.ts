// What the daemon must know of the files of manifests that `sluice up` applies: which of them are invalid now. Pure.

import type { InvalidManifest } from '../http/admin.ts'

export interface ManifestProblems {
  /** Everything that is wrong with the files now. */
  problems(): readonly InvalidManifest[]
  /** Calls the listener now and each time after the files were read, whether anything changed or not. */
  subscribe(listener: (problems: readonly InvalidManifest[]) => void): () => void
}

export const countFiles = (problems: readonly InvalidManifest[]): number =>
  new Set(problems.map(({ file }) => file)).size

/** `web.yaml:31: spec.ports[0].port: must be between 1 and 65535`. */
export function describeInvalidManifest({ file, line, field, message }: InvalidManifest): string {
  return `${file}${line === 0 ? '' : `:${line}`}: ${field === '' ? '' : `${field}: `}${message}`
}
