// Answers a command line of kube-proxy that only asks for a text, so that the proxy need not be loaded.

import { ProxyError } from '../../lib/errors.ts'
import { kubernetesVersion } from '../kubernetes-version.ts'
import { sluiceVersion } from '../sluice-version.ts'
import { formatUsage } from './flag-help.ts'
import { flagSettings } from './flag-table.ts'
import { parseFlags } from './parse-flags.ts'

/** Returns the help or the version if the command line asks for it; undefined also if it cannot be parsed. */
export function formatRequestedText(argv: readonly string[]): string | undefined {
  try {
    const { values, rest } = parseFlags(flagSettings, argv)
    if (values.help) return formatUsage()
    // `--version=v1.2.3` sets the version that is reported, and does not ask for it. Other arguments are an error that is reported later.
    const asks = values.version === 'true' || values.version === 'raw'
    return asks && rest.every((argument) => argument === '') ? formatVersion(values.version) : undefined
  } catch (error) {
    if (error instanceof ProxyError) return undefined
    throw error
  }
}

function formatVersion(form: string): string {
  const { major, minor, text } = kubernetesVersion
  if (form === 'true') return `Kubernetes ${text}\n`
  return `${JSON.stringify({ major: String(major), minor: String(minor), gitVersion: text, sluice: sluiceVersion })}\n`
}
