// Writes a number of bytes for people. Pure.

const units = ['B', 'kB', 'MB', 'GB', 'TB'] as const

/** `12 B`, `3.4 MB`. */
export function formatBytes(bytes: number): string {
  let value = bytes
  let unit = 0
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000
    unit++
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${units[unit]}`
}
