// The address of what is shown: `#/services?q=web`. It is in the hash, so that the server has one document.

import { useEffect, useState } from 'preact/hooks'

export interface PageRoute {
  /** `services`, `service`; '' for the overview. */
  readonly page: string
  readonly query: URLSearchParams
}

export function parseRoute(hash: string): PageRoute {
  const [path = '', words = ''] = hash.replace(/^#\/?/, '').split('?', 2)
  return { page: path, query: new URLSearchParams(words) }
}

export function hashOf(page: string, query: Readonly<Record<string, string>> = {}): string {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== '')).toString()
  return `#/${page}${words === '' ? '' : `?${words}`}`
}

export function useRoute(): PageRoute {
  const [route, setRoute] = useState(() => parseRoute(location.hash))
  useEffect(() => {
    const read = () => setRoute(parseRoute(location.hash))
    addEventListener('hashchange', read)
    return () => removeEventListener('hashchange', read)
  }, [])
  return route
}

/** Changes a word of the address without a new entry in the history of the browser. */
export function replaceQuery(page: string, query: Readonly<Record<string, string>>): void {
  history.replaceState(null, '', hashOf(page, query))
}
