// Writes the man pages from the command table, so that they say what `--help` says: sluice(8), one page per command, and kube-proxy(8).

import { formatHelp } from '../src/commands/command.ts'
import { formatOverview, visibleCommands } from '../src/commands/command-list.ts'
import { formatUsage } from '../src/config/flags/flag-help.ts'

/** File names and texts. */
export async function manPages(): Promise<ReadonlyMap<string, string>> {
  const pages = new Map<string, string>()
  pages.set('sluice.8', page('sluice', 'a Kubernetes service proxy, and commands to inspect it', formatOverview()))
  pages.set('kube-proxy.8', page('kube-proxy', 'the service proxy of a Kubernetes node, by Sluice', formatUsage()))
  for (const { name, summary, load } of visibleCommands()) {
    pages.set(`sluice-${name}.8`, page(`sluice-${name}`, summary, formatHelp(await load())))
  }
  return pages
}

/** The text is shown as it is; roff would otherwise fill its lines. */
const page = (name: string, summary: string, text: string): string =>
  [
    `.TH ${name.toUpperCase()} 8`,
    '.SH NAME',
    `${escapeRoff(name)} \\- ${escapeRoff(summary)}`,
    '.SH DESCRIPTION',
    '.nf',
    ...text.trimEnd().split('\n').map(escapeLine),
    '.fi',
    '',
  ].join('\n')

const escapeRoff = (text: string): string => text.replaceAll('\\', '\\e').replaceAll('-', '\\-')

/** A line that begins with a dot or an apostrophe would be a request to roff. */
const escapeLine = (line: string): string => (/^[.']/.test(line) ? `\\&${escapeRoff(line)}` : escapeRoff(line))
