// Where the API server is and how to be believed there: the outcome of reading a kubeconfig or a service account.

/** Bytes that may change under us (a file, read again) or may not (data in the kubeconfig). `field` names them in errors. */
export type Source =
  | { readonly field: string; readonly file: string }
  | { readonly field: string; readonly text: string }

export interface Connection {
  /** What people know it by: the kubeconfig's path, or `in-cluster`. */
  readonly origin: string
  readonly server: URL
  /** undefined: the system's roots. */
  readonly ca: Source | undefined
  readonly insecure: boolean
  /** '': the host of `server`. */
  readonly serverName: string
  readonly proxy: URL | undefined
  readonly compression: boolean
  readonly certificate: { readonly cert: Source; readonly key: Source } | undefined
  readonly auth: Auth
  /** Impersonation headers. */
  readonly headers: Readonly<Record<string, string | string[]>>
  /** Not fatal, but somebody should know. */
  readonly warnings: readonly string[]
}

export type Auth =
  | { readonly kind: 'none' }
  | { readonly kind: 'token'; readonly token: string }
  | {
      readonly kind: 'token-file'
      readonly file: string /** Used while the file cannot be read. */
      readonly token: string
    }
  | { readonly kind: 'basic'; readonly username: string; readonly password: string }
  | { readonly kind: 'exec'; readonly plugin: ExecPlugin }

export interface ExecPlugin {
  readonly apiVersion: string
  readonly command: string
  readonly args: readonly string[]
  readonly env: Readonly<Record<string, string>>
  readonly installHint: string
  /** `spec.cluster` of what the plugin is given; undefined unless provideClusterInfo. */
  readonly cluster: object | undefined
}
