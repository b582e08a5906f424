// Starts the page: the theme first, then the connection, then what is shown.

import { render } from 'preact'
import { App } from './app.tsx'
import { Live } from './live.ts'
import { applyTheme, readTheme } from './theme.ts'
import { LiveContext } from './use-live.ts'

applyTheme(readTheme())
const live = new Live()
live.start()
const root = document.getElementById('app')
if (root !== null) {
  render(
    <LiveContext.Provider value={live}>
      <App />
    </LiveContext.Provider>,
    root,
  )
}
