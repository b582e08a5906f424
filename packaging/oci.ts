// Writes OCI archives: layers, configurations, one manifest per architecture, an index, and an SBOM as a referrer. Pure.

import { createHash } from 'node:crypto'
import { gzipSync } from 'node:zlib'
import { FileTree } from './file-tree.ts'
import type { Architecture } from './inputs.ts'

export interface ImageConfig {
  readonly entrypoint: readonly string[]
  /** The arguments if a container names none. */
  readonly command?: readonly string[]
  readonly user: string
  readonly env: readonly string[]
  readonly labels: Readonly<Record<string, string>>
}

export interface PlatformImage {
  readonly architecture: Architecture
  /** Uncompressed tar archives, the lowest first. */
  readonly layers: readonly Uint8Array[]
  readonly config: ImageConfig
  /** SPDX as JSON. */
  readonly sbom?: string
}

export interface NamedImage {
  /** What `ctr` and `docker load` call it. */
  readonly name: string
  readonly platforms: readonly PlatformImage[]
}

interface Descriptor {
  readonly mediaType: string
  readonly digest: string
  readonly size: number
}

const mediaTypes = {
  index: 'application/vnd.oci.image.index.v1+json',
  manifest: 'application/vnd.oci.image.manifest.v1+json',
  config: 'application/vnd.oci.image.config.v1+json',
  layer: 'application/vnd.oci.image.layer.v1.tar+gzip',
  empty: 'application/vnd.oci.empty.v1+json',
  sbom: 'application/spdx+json',
} as const

/** `seconds` is the time of creation that the images claim. Images that share a layer share its bytes. */
export async function writeArchive(images: readonly NamedImage[], seconds: number): Promise<Buffer> {
  const blobs = new BlobStore()
  const created = new Date(seconds * 1000).toISOString().replace('.000Z', 'Z')
  const added = images.map((image) => addNamedImage(blobs, image, created))
  blobs.tree.add('oci-layout', JSON.stringify({ imageLayoutVersion: '1.0.0' }))
  blobs.tree.add('index.json', JSON.stringify({ schemaVersion: 2, manifests: added.map(({ index }) => index) }))
  blobs.tree.add('manifest.json', JSON.stringify(added.map(({ dockerManifest }) => dockerManifest)))
  return await blobs.tree.toTar(seconds)
}

function addNamedImage(blobs: BlobStore, { name, platforms }: NamedImage, created: string) {
  const manifests = platforms.map((image) => addImage(blobs, image, created))
  const index = blobs.addJson(mediaTypes.index, {
    schemaVersion: 2,
    mediaType: mediaTypes.index,
    manifests: manifests.flatMap(({ image, sbom }) => [image, ...sbom]),
  })
  const reference = name.split(':').at(-1) as string
  const annotations = { 'io.containerd.image.name': name, 'org.opencontainers.image.ref.name': reference }
  // `docker load` before version 25 reads this and not the index: the first architecture is its image.
  const first = manifests[0] as (typeof manifests)[number]
  const dockerManifest = { Config: blobPath(first.config), RepoTags: [name], Layers: first.layers.map(blobPath) }
  return { index: { ...index, annotations }, dockerManifest }
}

const blobPath = ({ digest }: Descriptor): string => `blobs/sha256/${digest.slice('sha256:'.length)}`

class BlobStore {
  readonly tree = new FileTree()
  readonly #layers = new Map<Uint8Array, { readonly descriptor: Descriptor; readonly diffId: string }>()

  /** Compressing a layer takes seconds, so a layer of several images is compressed once. */
  addLayer(layer: Uint8Array): { readonly descriptor: Descriptor; readonly diffId: string } {
    const known = this.#layers.get(layer)
    if (known !== undefined) return known
    const descriptor = this.add(mediaTypes.layer, gzipSync(layer, { level: 9 }))
    const added = { descriptor, diffId: sha256(layer) }
    this.#layers.set(layer, added)
    return added
  }

  add(mediaType: string, content: Uint8Array): Descriptor {
    const descriptor = { mediaType, digest: sha256(content), size: content.byteLength }
    this.tree.add(blobPath(descriptor), content)
    return descriptor
  }

  addJson(mediaType: string, value: unknown): Descriptor {
    return this.add(mediaType, Buffer.from(JSON.stringify(value)))
  }
}

interface AddedImage {
  readonly image: Descriptor & { readonly platform: { readonly architecture: string; readonly os: string } }
  /** None or one. */
  readonly sbom: readonly Descriptor[]
  readonly config: Descriptor
  readonly layers: readonly Descriptor[]
}

function addImage(
  blobs: BlobStore,
  { architecture, layers, config, sbom }: PlatformImage,
  created: string,
): AddedImage {
  const added = layers.map((layer) => blobs.addLayer(layer))
  const descriptor = blobs.addJson(mediaTypes.config, {
    architecture,
    os: 'linux',
    created,
    config: {
      Entrypoint: config.entrypoint,
      Cmd: config.command,
      User: config.user,
      Env: config.env,
      Labels: config.labels,
    },
    rootfs: { type: 'layers', diff_ids: added.map(({ diffId }) => diffId) },
    history: layers.map(() => ({ created, created_by: 'npm run image' })),
  })
  const manifest = blobs.addJson(mediaTypes.manifest, {
    schemaVersion: 2,
    mediaType: mediaTypes.manifest,
    config: descriptor,
    layers: added.map(({ descriptor: layer }) => layer),
    annotations: config.labels,
  })
  return {
    image: { ...manifest, platform: { architecture, os: 'linux' } },
    sbom: sbom === undefined ? [] : [addSbom(blobs, sbom, manifest)],
    config: descriptor,
    layers: added.map(({ descriptor: layer }) => layer),
  }
}

function addSbom(blobs: BlobStore, sbom: string, subject: Descriptor): Descriptor {
  return blobs.addJson(mediaTypes.manifest, {
    schemaVersion: 2,
    mediaType: mediaTypes.manifest,
    artifactType: mediaTypes.sbom,
    config: blobs.addJson(mediaTypes.empty, {}),
    layers: [blobs.add(mediaTypes.sbom, Buffer.from(sbom))],
    subject,
  })
}

const sha256 = (bytes: Uint8Array): string => `sha256:${createHash('sha256').update(bytes).digest('hex')}`
