// A button that copies the command which gives the same list in a terminal.

import { useRef, useState } from 'preact/hooks'
import { useLive } from '../use-live.ts'
import { quoteWord } from '../words.ts'

export interface CopyCommandProps {
  /** The command and its arguments, without the flags that choose the proxy. */
  readonly words: readonly string[]
  /** What follows the command: `| grep web`. */
  readonly pipe?: string
  readonly isFleet?: boolean
}

export function CopyCommand({ words, pipe = '', isFleet = false }: CopyCommandProps) {
  const { about } = useLive()
  const [isCopied, setCopied] = useState(false)
  const field = useRef<HTMLElement>(null)
  const flags = (isFleet ? about?.fleetFlags : about?.flags) ?? []
  const command = [about?.program ?? 'sluice', ...[...words, ...flags].map(quoteWord), pipe].join(' ').trim()
  const copy = async () => {
    await copyText(command, field.current)
    setCopied(true)
    setTimeout(() => setCopied(false), 2_000)
  }
  const word = isCopied ? 'Copied' : 'Copy'
  return (
    <div class="command">
      <code ref={field}>{command}</code>
      <button type="button" class="quiet" onClick={() => void copy()} aria-label={`${word} the command ${command}`}>
        {word.toLowerCase()}
      </button>
      <span class="unseen" role="status">
        {isCopied ? 'The command was copied.' : ''}
      </span>
    </div>
  )
}

/** Without TLS browsers offer the clipboard only on loopback; elsewhere the text is selected, for Ctrl-C. */
async function copyText(text: string, field: HTMLElement | null): Promise<void> {
  try {
    await navigator.clipboard.writeText(text)
  } catch {
    if (field !== null) getSelection()?.selectAllChildren(field)
  }
}
