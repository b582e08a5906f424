// Formats a configuration as the YAML that `--write-config-to` writes: v1alpha1, with sorted keys, in block style. Pure.

import { stringify } from 'yaml'
import { toV1alpha1, type Unchecked } from './configuration.ts'

export function formatConfig(config: Unchecked): string {
  // YAML 1.1 quotes words like `on`, which its readers would take for booleans.
  return stringify(toV1alpha1(config), { version: '1.1', indentSeq: false, lineWidth: 0, nullStr: 'null' })
}
