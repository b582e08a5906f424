// Who we are to the API server: static, from a token file that rotates, or from an exec plugin whose answers expire.

import { readFile } from 'node:fs/promises'
import type { Logger } from '../lib/log.ts'
import type { Clock } from '../lib/time.ts'
import type { Auth } from './connection.ts'
import { type Credential, runPlugin } from './exec-plugin.ts'

/** The kubelet replaces a token well before it expires; client-go looks as often. */
const rereadMs = 60_000

export interface ClientIdentity {
  readonly authorization: string
  /** Given by an exec plugin; PEM. */
  readonly certificate: Credential['certificate']
}

const anonymous: ClientIdentity = { authorization: '', certificate: undefined }

export class ClientCredentials {
  readonly #auth: Auth
  readonly #clock: Clock
  readonly #log: Logger
  #identity: ClientIdentity | undefined
  #goodUntil = 0
  /** One look-up at a time: a hundred requests must not start a hundred plugins. */
  #looking: Promise<ClientIdentity> | undefined

  constructor(auth: Auth, clock: Clock, log: Logger) {
    this.#auth = auth
    this.#clock = clock
    this.#log = log
  }

  async identity(): Promise<ClientIdentity> {
    if (this.#identity !== undefined && this.#clock.now() < this.#goodUntil) return this.#identity
    this.#looking ??= this.#look().finally(() => {
      this.#looking = undefined
    })
    return this.#looking
  }

  /** The server did not accept `used`: the next look-up is a fresh one. False if that cannot help. */
  reject(used: ClientIdentity): boolean {
    if (this.#auth.kind !== 'token-file' && this.#auth.kind !== 'exec') return false
    // Someone else was refused with the same identity before, and a newer one is here already.
    if (this.#identity === used) this.#goodUntil = 0
    return true
  }

  async #look(): Promise<ClientIdentity> {
    const auth = this.#auth
    let authorization = ''
    let certificate: Credential['certificate']
    let goodUntil = Number.POSITIVE_INFINITY
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
        goodUntil = this.#clock.now() + rereadMs
        break
      case 'exec': {
        const credential = await runPlugin(auth.plugin)
        authorization = credential.token === '' ? '' : `Bearer ${credential.token}`
        certificate = credential.certificate
        goodUntil = credential.expires
      }
    }
    this.#goodUntil = goodUntil
    this.#identity = authorization === '' && certificate === undefined ? anonymous : { authorization, certificate }
    return this.#identity
  }

  /** A file that cannot be read just now leaves us who we were. */
  async #readToken(file: string, initial: string): Promise<string> {
    try {
      const token = (await readFile(file, 'utf8')).trim()
      if (token !== '') return `Bearer ${token}`
      this.#log.warn('Token file is empty; the last token is used', { file })
    } catch (error) {
      this.#log.warn('Token file cannot be read; the last token is used', { file, error })
    }
    return this.#identity?.authorization || `Bearer ${initial.trim()}`
  }
}
