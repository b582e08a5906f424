// The frame of every page: the head with the navigation, the state of the connection, and the page that the address names.

import type { ComponentChildren } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import type { Link } from './live.ts'
import { FleetPage } from './pages/fleet-page.tsx'
import { FlowsPage } from './pages/flows-page.tsx'
import { HistoryPage } from './pages/history-page.tsx'
import { OverviewPage } from './pages/overview-page.tsx'
import { ServicePageView } from './pages/service-page.tsx'
import { ServicesPage } from './pages/services-page.tsx'
import { hashOf, type PageRoute, useRoute } from './route.ts'
import { applyTheme, readTheme, type Theme, themes } from './theme.ts'
import { useLive } from './use-live.ts'
import { formatAge } from './words.ts'

export function App() {
  const route = useRoute()
  const { about, link, overview } = useLive()
  const main = useRef<HTMLElement>(null)
  const place = `${route.page} ${route.query.get('name') ?? ''}`
  const isFirst = useRef(true)
  useEffect(() => {
    // After a change of page a screen reader starts to read at its beginning.
    if (!isFirst.current) main.current?.focus()
    isFirst.current = false
  }, [place])
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => skip(event, main.current)}>
        Skip to the content
      </a>
      <header class="head">
        <a class="brand" href={hashOf('')}>
          <Mark /> Sluice
        </a>
        {about === undefined ? null : (
          <Navigation route={route} hasProxy={about.hasProxy} hasFleet={about.fleetFlags !== null} />
        )}
        <div class="head-end">
          {overview === undefined ? null : (
            <span class="node" title={`process ${overview.pid}, version ${overview.version}`}>
              <b>{overview.node}</b> <span class="muted">{overview.mode}</span>
            </span>
          )}
          <LinkState link={link} isShown={about?.hasProxy !== false} />
          <ThemeChoice />
        </div>
      </header>
      <Banner link={link} isShown={about?.hasProxy !== false} />
      <main id="main" ref={main} tabIndex={-1}>
        <CurrentPage route={route} hasProxy={about?.hasProxy ?? true} />
      </main>
    </div>
  )
}

function skip(event: Event, main: HTMLElement | null): void {
  event.preventDefault()
  main?.focus()
}

function CurrentPage({ route, hasProxy }: { route: PageRoute; hasProxy: boolean }) {
  if (!hasProxy || route.page === 'fleet') return <FleetPage />
  if (route.page === 'services') return <ServicesPage query={route.query} />
  if (route.page === 'service') return <ServicePageView name={route.query.get('name') ?? ''} />
  if (route.page === 'flows') return <FlowsPage query={route.query} />
  if (route.page === 'history') return <HistoryPage query={route.query} />
  return <OverviewPage />
}

function Navigation(props: { route: PageRoute; hasProxy: boolean; hasFleet: boolean }) {
  const { route, hasProxy, hasFleet } = props
  const shown = hasProxy ? route.page : 'fleet'
  const current = shown === 'service' ? 'services' : shown
  const item = (page: string, title: string) => (
    <li>
      <a href={hashOf(page)} aria-current={current === page ? 'page' : undefined}>
        {title}
      </a>
    </li>
  )
  return (
    <nav aria-label="Pages">
      <ul>
        {hasProxy ? item('', 'Overview') : null}
        {hasProxy ? item('services', 'Services') : null}
        {hasProxy ? item('flows', 'Flows') : null}
        {hasProxy ? item('history', 'History') : null}
        {hasFleet ? item('fleet', 'Nodes') : null}
      </ul>
    </nav>
  )
}

const linkWords: Readonly<Record<Link['kind'], string>> = {
  connecting: 'connecting',
  live: 'live',
  gone: 'proxy gone',
  lost: 'not connected',
}

function LinkState({ link, isShown }: { link: Link; isShown: boolean }) {
  if (!isShown) return null
  return (
    <span class={`link link-${link.kind}`} role="status">
      <span class="dot" aria-hidden="true" /> {linkWords[link.kind]}
    </span>
  )
}

function Banner({ link, isShown }: { link: Link; isShown: boolean }) {
  const { overview } = useLive()
  const since = useSince(link.kind)
  if (!isShown || link.kind === 'live' || (link.kind === 'connecting' && overview === undefined)) return null
  if (link.kind === 'connecting') return null
  const age = formatAge(Date.now() - since)
  const text: ComponentChildren =
    link.kind === 'gone' ? (
      <>
        <b>The proxy does not answer</b> (for {age}): {link.message}. Its rules stay in the kernel and keep working.
        What is shown is the last answer; this page connects again by itself.
      </>
    ) : (
      <>
        <b>The dashboard does not answer</b> (for {age}). If sluice dashboard was started again, open the URL that it
        printed. Otherwise this page connects again by itself.
      </>
    )
  return (
    <div class="banner" role="alert">
      {text}
    </div>
  )
}

/** When the value last changed. */
function useSince(value: string): number {
  const [since, setSince] = useState(Date.now())
  useEffect(() => setSince(Date.now()), [value])
  return since
}

function ThemeChoice() {
  const [theme, setTheme] = useState<Theme>(readTheme())
  const next = themes[(themes.indexOf(theme) + 1) % themes.length] as Theme
  const choose = () => {
    applyTheme(next)
    setTheme(next)
  }
  return (
    <button type="button" class="quiet" onClick={choose} aria-label={`Colours: ${theme}. Change to ${next}`}>
      {{ auto: '◐', light: '☀', dark: '☾' }[theme]}
    </button>
  )
}

const Mark = () => (
  <svg class="mark" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
    <rect width="32" height="32" rx="7" />
    <path class="mark-gate" d="M5 11h7v10H5M27 11h-7v10h7" />
    <path class="mark-flow" d="M3 16h26" />
  </svg>
)
