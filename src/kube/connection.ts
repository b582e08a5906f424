// The types of a connection to the API server: its address, TLS settings and credentials. kubeconfig.ts makes them. Pure.

/** A certificate or a key: a file, which is read again when it changes, or text of the kubeconfig. `field` names it in errors. */
export type PemSource =
  | { readonly field: string; readonly file: string }
  | { readonly field: string; readonly text: string }

export interface Connection {
  /** For messages: the path of the kubeconfig, `in-cluster` or `--master`. */
  readonly origin: string
  readonly server: URL
  /** Undefined if the system's roots are trusted. */
  readonly ca: PemSource | undefined
  readonly insecure: boolean
  /** The name to expect in the certificate; '' for the host of `server`. */
  readonly serverName: string
  readonly proxy: URL | undefined
  readonly compression: boolean
  readonly certificate: { readonly cert: PemSource; readonly key: PemSource } | undefined
  readonly auth: Auth
  /** Impersonation headers. */
  readonly headers: Readonly<Record<string, string | string[]>>
  /** Lines to log once. */
  readonly warnings: readonly string[]
}

export type Auth =
  | { readonly kind: 'none' }
  | { readonly kind: 'token'; readonly token: string }
  | {
      readonly kind: 'token-file'
      readonly file: string
      /** Used while the file cannot be read. */
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
  /** `spec.cluster` of the plugin's input; undefined unless provideClusterInfo is set. */
  readonly cluster: object | undefined
}
