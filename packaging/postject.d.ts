// The types of postject's one function, which its package does not declare.

declare module 'postject' {
  export function inject(
    binary: string,
    resource: string,
    content: Uint8Array,
    options: { readonly sentinelFuse: string },
  ): Promise<void>
}
