// Formats tables of Markdown. Pure.

export function formatTable(heads: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`
  return [line(heads), line(heads.map(() => '---')), ...rows.map(line)].join('\n')
}

export const escapeCell = (text: string): string => text.replaceAll('|', '\\|').replaceAll('\n', ' ').trim()
