// The credentials for requests to the API server: static, from a token file that rotates, or from an exec plugin whose answers expire.

import { readFile } from 'node:fs/promises'
import { ProxyError } from '../lib/errors.ts'
import type { Logger } from '../lib/log.ts'
import type { Clock } from '../lib/time.ts'
import type { Auth } from './connection.ts'
import { type Credential, runPlugin } from './exec-plugin.ts'

/** The kubelet replaces a token well before it expires. client-go reads it again as often. */
const rereadMs = 60_000

export interface ClientIdentity {
  readonly authorization: string
  /** PEM, from an exec plugin. */
  readonly certificate: Credential['certificate']
}

const anonymous: ClientIdentity = { authorization: '', certificate: undefined }

export class ClientCredentials {
  readonly #auth: Auth
  readonly #clock: Clock
  readonly #log: Logger
  #identity: ClientIdentity | undefined
  /** Unix ms. */
  #validUntil = 0
  /** When a token file is read again. Monotonic: a wall clock that is set back must not keep an old token in use. */
  #rereadAt = Number.POSITIVE_INFINITY
  /** One refresh at a time: a hundred requests must not start a hundred plugins. */
  #refreshing: Promise<ClientIdentity> | undefined
  readonly #closed = new AbortController()

  constructor(auth: Auth, clock: Clock, log: Logger) {
    this.#auth = auth
    this.#clock = clock
    this.#log = log
  }

  async identity(): Promise<ClientIdentity> {
    const isValid = this.#clock.now() < this.#validUntil && this.#clock.monotonic() < this.#rereadAt
    if (this.#identity !== undefined && isValid) return this.#identity
    this.#refreshing ??= this.#refresh().finally(() => {
      this.#refreshing = undefined
    })
    return this.#refreshing
  }

  /** Called when the server refuses `used`. Returns whether the next request can get new credentials. */
  reject(used: ClientIdentity): boolean {
    if (this.#auth.kind !== 'token-file' && this.#auth.kind !== 'exec') return false
    // Otherwise another request was refused with the same identity before, and newer credentials are here already.
    if (this.#identity === used) this.#validUntil = 0
    return true
  }

  /** Ends a plugin that is running. */
  close(): void {
    this.#closed.abort(new ProxyError('closed', 'the API client is closed'))
  }

  async #refresh(): Promise<ClientIdentity> {
    const auth = this.#auth
    let authorization = ''
    let certificate: Credential['certificate']
    let validUntil = Number.POSITIVE_INFINITY
    switch (auth.kind) {
      case 'none':
        break
      case 'token':
        authorization = `Bearer ${auth.token}`
        break
      case 'basic':
        authorization = `Basic ${Buffer.from(`${auth.username}:${auth.password}`).toString('base64')}`
        break
      case 'token-file':
        authorization = await this.#readToken(auth.file, auth.token)
        this.#rereadAt = this.#clock.monotonic() + rereadMs
        break
      case 'exec': {
        const credential = await runPlugin(auth.plugin, this.#clock, this.#closed.signal)
        authorization = credential.token === '' ? '' : `Bearer ${credential.token}`
        certificate = credential.certificate
        validUntil = credential.expires
      }
    }
    this.#validUntil = validUntil
    this.#identity = authorization === '' && certificate === undefined ? anonymous : { authorization, certificate }
    return this.#identity
  }

  /** If the file cannot be read now, the last token stays in use. */
  async #readToken(file: string, initial: string): Promise<string> {
    try {
      const token = (await readFile(file, 'utf8')).trim()
      if (token !== '') return `Bearer ${token}`
      this.#log.warn('The token file is empty; the last token is used', { file })
    } catch (error) {
      this.#log.warn('The token file cannot be read; the last token is used', { file, error })
    }
    return this.#identity?.authorization || `Bearer ${initial.trim()}`
  }
}
