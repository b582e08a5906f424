// Hooks: what the page knows about the proxy, answers of the server, and the time.

import { createContext } from 'preact'
import { useContext, useEffect, useState } from 'preact/hooks'
import { AskError, ask } from './ask.ts'
import { Live, type LiveState } from './live.ts'

export const LiveContext = createContext<Live>(new Live())

export function useLive(): LiveState {
  const live = useContext(LiveContext)
  const [state, setState] = useState(live.state)
  useEffect(() => {
    setState(live.state)
    return live.subscribe(() => setState(live.state))
  }, [live])
  return state
}

export interface Asked<T> {
  readonly answer: T | undefined
  /** '' if there is none. The last answer stays. */
  readonly error: string
  readonly isAsking: boolean
}

/** Asks when the path, the query or the version changes, and every `everyMs` if that is not 0. An empty path asks nothing. */
export function useAnswer<T>(
  path: string,
  query: Readonly<Record<string, string>>,
  version = '',
  everyMs = 0,
): Asked<T> {
  const words = JSON.stringify(query)
  const [asked, setAsked] = useState<Asked<T>>({ answer: undefined, error: '', isAsking: true })
  useEffect(() => setAsked({ answer: undefined, error: '', isAsking: path !== '' }), [path, words])
  useEffect(() => {
    if (path === '') return
    const stop = new AbortController()
    const read = async () => {
      if (document.hidden) return
      try {
        const answer = await ask<T>(path, JSON.parse(words) as Record<string, string>, stop.signal)
        setAsked({ answer, error: '', isAsking: false })
      } catch (error) {
        if (stop.signal.aborted) return
        if (!(error instanceof AskError)) throw error
        setAsked((last) => ({ ...last, error: error.message, isAsking: false }))
      }
    }
    void read()
    const timer = everyMs === 0 ? undefined : setInterval(() => void read(), everyMs)
    return () => {
      stop.abort()
      clearInterval(timer)
    }
  }, [path, words, version, everyMs])
  return asked
}

/** The time, and again every `everyMs`. */
export function useNow(everyMs: number): number {
  const [now, setNow] = useState(Date.now())
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMs)
    return () => clearInterval(timer)
  }, [everyMs])
  return now
}
