// Reads the file of our own settings again when it changes. A file that is not valid changes nothing.

import { readFileSync } from 'node:fs'
import { type FileWatch, watchFileName } from '../config/file-watch.ts'
import { loadSluiceConfig, replaceLiveFields, type SluiceConfig } from '../config/sluice-config.ts'
import type { Metrics } from '../http/metrics.ts'
import { describeError, hasErrno, ProxyError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock, Timer } from '../lib/time.ts'

/** A change of a file often comes as several events. */
const settleMs = 100
/** A file that could not be read for another reason than its absence, for example too many open files, is tried again after this time. */
const retryMs = 10_000

export interface SettingsReloadOptions {
  readonly file: string
  /** The settings in use. Fields that may change while the proxy runs are changed in place. */
  readonly settings: SluiceConfig
  /** Called after fields have changed, with their paths. */
  readonly onChanged: (fields: readonly string[]) => void
  readonly metrics: Pick<Metrics, 'settings'>
  readonly clock: Clock
  readonly log: Logger
}

export class SettingsReload {
  readonly #options: SettingsReloadOptions
  /** The text that was read last, or why it could not be read. */
  #seen = ''
  #watch: FileWatch | undefined
  #timer: Timer | undefined

  constructor(options: SettingsReloadOptions) {
    this.#options = options
    const { file, log } = options
    const onError = (error: unknown) =>
      log.warn('Changes of the settings need a restart', { file, error: describeError(error) })
    try {
      this.#watch = watchFileName(file, () => this.#settle(), onError)
      // The file may have changed since the start read it.
      this.#settle()
    } catch (error) {
      onError(error)
    }
  }

  close(): void {
    this.#timer?.cancel()
    this.#watch?.close()
  }

  #settle(): void {
    this.#timer?.cancel()
    this.#timer = this.#options.clock.after(settleMs, () => this.#read())
  }

  #read(): void {
    const { file, metrics, clock, log } = this.#options
    try {
      const text = readFileSync(file, 'utf8')
      if (text === this.#seen) return
      this.#seen = text
      this.#replace(loadSluiceConfig(file, text))
      metrics.settings.refused(false)
    } catch (error) {
      const reason = describeError(error)
      const isUnreadable = !(error instanceof ProxyError)
      if (isUnreadable && !hasErrno(error, 'ENOENT')) this.#timer = clock.after(retryMs, () => this.#read())
      if (reason === this.#seen) return
      if (isUnreadable) this.#seen = reason
      metrics.settings.refused(true)
      log.error('The new settings are refused; the old ones stay', { file, error: reason })
    }
  }

  #replace(next: SluiceConfig): void {
    const { file, settings, onChanged, metrics, log } = this.#options
    const { changed, waiting } = replaceLiveFields(settings, next)
    if (waiting.length > 0) log.warn('New settings take effect at a restart', { file, fields: waiting.join(', ') })
    if (changed.length === 0) return
    log.info('New settings take effect', { file, fields: changed.join(', ') })
    metrics.settings.applied()
    onChanged(changed)
  }
}
