// Numbers, times and names in words for people. Pure.

const hour = 3_600_000

/** `12 s`, `5 min`, `3 h`, `2 d`. */
export function formatAge(ms: number): string {
  if (ms < 60_000) return `${Math.max(0, Math.floor(ms / 1000))} s`
  if (ms < hour) return `${Math.floor(ms / 60_000)} min`
  return ms < 48 * hour ? `${Math.floor(ms / hour)} h` : `${Math.floor(ms / (24 * hour))} d`
}

/** `14:03:07`, in the time zone of the browser. */
export const formatClock = (time: number | string): string =>
  new Date(time).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' })

export const formatCount = (value: number): string => value.toLocaleString('en-US', { maximumFractionDigits: 0 })

/** A number per second. */
export const formatRate = (value: number): string => (value > 0 && value < 10 ? value.toFixed(1) : formatCount(value))

/** At most three digits that mean something. */
export function formatMs(ms: number): string {
  if (ms >= 10_000) return `${(ms / 1000).toFixed(0)} s`
  if (ms >= 1_000) return `${(ms / 1000).toFixed(1)} s`
  return ms >= 10 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`
}

export function formatBytes(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB']
  const step = Math.min(units.length - 1, Math.floor(Math.log10(Math.max(1, bytes)) / 3))
  const value = bytes / 1000 ** step
  return `${value >= 100 || step === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[step]}`
}

export const formatShare = (share: number): string => {
  if (share === 0) return '0 %'
  return share < 0.1 ? `${(share * 100).toFixed(1)} %` : `${(share * 100).toFixed(0)} %`
}

export const plural = (count: number, noun: string): string => `${formatCount(count)} ${noun}${count === 1 ? '' : 's'}`

/** Quotes a word for a shell if that is needed. */
export const quoteWord = (word: string): string =>
  /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", String.raw`'\''`)}'`
