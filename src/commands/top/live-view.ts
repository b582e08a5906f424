// Shows a running proxy live: on a terminal a view that follows the proxy and its keys, elsewhere one line per event.

import type { AdminEvent } from '../../http/admin.ts'
import type { AdminClient } from '../../http/admin-client.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { formatTime } from '../../lib/time.ts'
import type { Terminal } from '../terminal.ts'
import { describeEvent } from './event-lines.ts'
import { type LiveDocument, makeTable, type ServiceHistory } from './live-document.ts'
import { LiveFeed } from './live-feed.ts'
import type { NoteCapture } from './note-capture.ts'
import { Screen } from './screen.ts'
import { formatScreen, measureView, selectedService, type ViewContent } from './view-lines.ts'
import { initialState, type Key, pressKey, settle, type ViewState } from './view-state.ts'

const refreshMs = 1_000

export interface LiveViewOptions {
  readonly proxy: AdminClient
  readonly terminal: Terminal
  readonly signal: AbortSignal
  readonly notes: NoteCapture
  /** Shown on the first page and on the page of help. */
  readonly introduction?: readonly string[]
  /** Keys of the command that shows the view. */
  readonly keys?: Readonly<Record<Key, ViewKey>>
  /** Formats one event on a pipe; a sentence if absent. */
  readonly formatEvent?: (event: AdminEvent, at: number) => string
}

export interface ViewKey {
  /** `2 two pods` */
  readonly hint: string
  readonly press: () => void
}

/** Shows the proxy until the signal aborts, the user quits, or the events of the proxy end. */
export async function watchProxy(options: LiveViewOptions): Promise<'quit' | 'ended'> {
  if (options.terminal.interactive) return new LiveView(options).run()
  await printEvents(options)
  return 'ended'
}

async function printEvents({ proxy, terminal, signal, formatEvent = formatLine }: LiveViewOptions): Promise<void> {
  try {
    await proxy.events((event) => terminal.write(formatEvent(event, Date.now())), signal)
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    if (!signal.aborted) terminal.note(`${error.message}\n`)
  }
}

const formatLine = (event: AdminEvent, at: number): string => `${formatTime(at)} ${describeEvent(event)}\n`

class LiveView {
  readonly #options: LiveViewOptions
  readonly #feed: LiveFeed
  readonly #screen: Screen
  readonly #ended = new AbortController()
  #state: ViewState
  #document: LiveDocument | undefined
  #content: ViewContent | undefined
  #history: ServiceHistory | undefined
  #warning = ''

  constructor(options: LiveViewOptions) {
    this.#options = options
    this.#feed = new LiveFeed(options.proxy)
    this.#state = { ...initialState, page: (options.introduction ?? []).length > 0 ? 'help' : 'list' }
    this.#screen = new Screen({
      input: process.stdin,
      output: process.stdout,
      paint: options.terminal.paint,
      onKey: (key) => this.#press(key),
      onResize: () => this.#draw(),
    })
  }

  async run(): Promise<'quit' | 'ended'> {
    const { signal, notes } = this.#options
    // The first answer comes before the screen: if there is none, the error is one line in the terminal.
    this.#show(await this.#feed.read())
    const stop = AbortSignal.any([signal, this.#ended.signal])
    notes.start(() => this.#rebuild())
    this.#screen.open()
    try {
      this.#draw()
      while (!stop.aborted) {
        await waitForRefresh(stop)
        if (!stop.aborted) await this.#refresh()
      }
    } finally {
      this.#screen.close()
      notes.end()
    }
    return this.#ended.signal.aborted ? 'quit' : 'ended'
  }

  async #refresh(): Promise<void> {
    try {
      const document = await this.#feed.read()
      this.#warning = ''
      if (this.#state.page === 'service') await this.#readHistory()
      this.#show(document)
    } catch (error) {
      if (!(error instanceof ProxyError)) throw error
      this.#warning = `${describeError(error)}; the last answers are shown`
      this.#rebuild()
    }
  }

  async #readHistory(): Promise<void> {
    const service = this.#content === undefined ? '' : selectedService(this.#content.table, this.#state)
    if (service !== '') this.#history = await this.#feed.readHistory(service)
  }

  #show(document: LiveDocument): void {
    this.#document = document
    this.#rebuild()
  }

  /** Computes what is shown after a change of the answers, the order or the filter. */
  #rebuild(): void {
    if (this.#document === undefined) return
    const { introduction = [], keys = {}, notes } = this.#options
    const { sort, filter } = this.#state
    this.#content = {
      table: makeTable(this.#document, sort, filter),
      history: this.#history,
      extras: { notes: notes.notes, introduction, hints: Object.values(keys).map(({ hint }) => hint) },
      warning: this.#warning,
    }
    this.#draw()
  }

  #draw(): void {
    if (this.#content === undefined) return
    const { size } = this.#screen
    this.#state = settle(this.#state, measureView(this.#content, this.#state, size))
    this.#screen.draw(formatScreen(this.#content, this.#state, size))
  }

  #press(key: Key): void {
    if (this.#content === undefined) return
    const own = this.#state.isTyping ? undefined : this.#options.keys?.[key]
    if (own !== undefined) own.press()
    else this.#move(this.#content, key)
  }

  #move(content: ViewContent, key: Key): void {
    const before = this.#state
    const after = pressKey(before, key, measureView(content, before, this.#screen.size))
    if (after === 'quit') {
      this.#ended.abort()
      return
    }
    this.#state = after
    if (after.sort !== before.sort || after.filter !== before.filter) this.#rebuild()
    else this.#draw()
    if (after.page === 'service' && before.page !== 'service') void this.#refresh()
  }
}

/** Resolves after the refresh interval, or at once when the signal aborts. */
function waitForRefresh(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve()
    const timer = setTimeout(finish, refreshMs)
    function finish() {
      clearTimeout(timer)
      signal.removeEventListener('abort', finish)
      resolve()
    }
    signal.addEventListener('abort', finish, { once: true })
  })
}
