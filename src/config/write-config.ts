// The configuration as the YAML that `--write-config-to` writes: v1alpha1, keys sorted, block style.

import { stringify } from 'yaml'
import { toV1alpha1, type Unchecked } from './configuration.ts'

export function formatConfig(config: Unchecked): string {
  // YAML 1.1, so that words like `on` are quoted for the readers that would take them for booleans.
  return stringify(toV1alpha1(config), { version: '1.1', indentSeq: false, lineWidth: 0, nullStr: 'null' })
}
