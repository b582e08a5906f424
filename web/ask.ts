// Asks the server of the dashboard. Every text of its answers is made visible; the original goes back to the server in later questions.

import { showHidden } from './visible-text.ts'

/** The originals of texts that were changed, for questions about them. */
const originals = new Map<string, string>()
const maxOriginals = 10_000

function revive(_: string, value: unknown): unknown {
  if (typeof value !== 'string') return value
  const shown = showHidden(value)
  if (shown !== value && originals.size < maxOriginals) originals.set(shown, value)
  return shown
}

export const parseAnswer = <T>(text: string): T => JSON.parse(text, revive) as T

/** What went wrong, in words for people. */
export class AskError extends Error {
  readonly status: number

  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}

export async function ask<T>(
  path: string,
  query: Readonly<Record<string, string>> = {},
  signal?: AbortSignal,
): Promise<T> {
  const given = Object.entries(query).map(([name, value]) => [name, originals.get(value) ?? value])
  const words = new URLSearchParams(Object.fromEntries(given)).toString()
  const response = await fetch(`/api/${path}${words === '' ? '' : `?${words}`}`, {
    credentials: 'same-origin',
    ...(signal === undefined ? {} : { signal }),
  }).catch((error: unknown) => {
    if (signal?.aborted) throw error
    throw new AskError(0, 'The dashboard does not answer. Does sluice dashboard still run?')
  })
  const text = await response.text()
  if (response.ok) return parseAnswer<T>(text)
  throw new AskError(response.status, readError(text))
}

function readError(text: string): string {
  try {
    return parseAnswer<{ error: string }>(text).error
  } catch {
    return showHidden(text.trim())
  }
}
