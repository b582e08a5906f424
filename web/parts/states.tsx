// Small parts that several pages share: badges, and what is shown while there is nothing else.

import type { ComponentChildren } from 'preact'
import type { ServiceState } from '../../src/http/admin-page.ts'

export const stateWords: Readonly<Record<ServiceState, string>> = {
  ok: 'ok',
  pending: 'pending',
  empty: 'no endpoints',
  ejected: 'endpoint left out',
  conflict: 'conflict',
  wrong: 'kernel differs',
  quarantined: 'quarantined',
}

/** The worst first. */
export const stateRank: Readonly<Record<ServiceState, number>> = {
  quarantined: 0,
  wrong: 1,
  conflict: 2,
  ejected: 3,
  empty: 4,
  pending: 5,
  ok: 6,
}

const levels: Readonly<Record<ServiceState, string>> = {
  ok: 'good',
  pending: 'plain',
  empty: 'warn',
  ejected: 'warn',
  conflict: 'bad',
  wrong: 'bad',
  quarantined: 'bad',
}

export const StateBadge = ({ state }: { state: ServiceState }) => (
  <Badge level={levels[state]}>{stateWords[state]}</Badge>
)

export const Badge = ({ level, children }: { level: string; children: ComponentChildren }) => (
  <span class={`badge badge-${level}`}>{children}</span>
)

export const Empty = ({ title, children }: { title: string; children?: ComponentChildren }) => (
  <div class="empty">
    <p class="empty-title">{title}</p>
    {children === undefined ? null : <p>{children}</p>}
  </div>
)

export const Problem = ({ text }: { text: string }) =>
  text === '' ? null : (
    <p class="problem" role="alert">
      {text}
    </p>
  )

export const Waiting = ({ what }: { what: string }) => (
  <p class="waiting" role="status">
    Reading {what} …
  </p>
)

/** A part of a page with a heading, and what belongs to its right end. */
export function Section(props: {
  title: string
  end?: ComponentChildren
  children: ComponentChildren
  class?: string
}) {
  const id = `section-${props.title.toLowerCase().replace(/\W+/g, '-')}`
  return (
    <section class={`section ${props.class ?? ''}`} aria-labelledby={id}>
      <div class="section-head">
        <h2 id={id}>{props.title}</h2>
        {props.end}
      </div>
      {props.children}
    </section>
  )
}
