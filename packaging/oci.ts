// Writes OCI archives: layers, configurations, one manifest per architecture, an index, and an SBOM as a referrer. Pure.

import { createHash } from 'node:crypto'
import { gzipSync } from 'node:zlib'
import { FileTree } from './file-tree.ts'
import type { Architecture } from './inputs.ts'

export interface ImageConfig {
  readonly entrypoint: readonly string[]
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
  readonly sbom: string
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

/** `seconds` is the time of creation that the image claims; `name` is what `ctr` and `docker load` call it. */
export async function writeArchive(name: string, images: readonly PlatformImage[], seconds: number): Promise<Buffer> {
  const blobs = new BlobStore()
  const created = new Date(seconds * 1000).toISOString().replace('.000Z', 'Z')
  const manifests = images.map((image) => addImage(blobs, image, created))
  const index = blobs.addJson(mediaTypes.index, {
    schemaVersion: 2,
    mediaType: mediaTypes.index,
    manifests: manifests.flatMap(({ image, sbom }) => [image, sbom]),
  })
  const reference = name.split(':').at(-1) as string
  const annotations = { 'io.containerd.image.name': name, 'org.opencontainers.image.ref.name': reference }
  blobs.tree.add('oci-layout', JSON.stringify({ imageLayoutVersion: '1.0.0' }))
  blobs.tree.add('index.json', JSON.stringify({ schemaVersion: 2, manifests: [{ ...index, annotations }] }))
  // `docker load` before version 25 reads this file and not the index: the first architecture is its image.
  const first = manifests[0] as (typeof manifests)[number]
  const dockerManifest = [{ Config: blobPath(first.config), RepoTags: [name], Layers: first.layers.map(blobPath) }]
  blobs.tree.add('manifest.json', JSON.stringify(dockerManifest))
  return await blobs.tree.toTar(seconds)
}

const blobPath = ({ digest }: Descriptor): string => `blobs/sha256/${digest.slice('sha256:'.length)}`

class BlobStore {
  readonly tree = new FileTree()

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
  readonly sbom: Descriptor
  readonly config: Descriptor
  readonly layers: readonly Descriptor[]
}

function addImage(
  blobs: BlobStore,
  { architecture, layers, config, sbom }: PlatformImage,
  created: string,
): AddedImage {
  const added = layers.map((layer) => blobs.add(mediaTypes.layer, gzipSync(layer, { level: 9 })))
  const descriptor = blobs.addJson(mediaTypes.config, {
    architecture,
    os: 'linux',
    created,
    config: { Entrypoint: config.entrypoint, User: config.user, Env: config.env, Labels: config.labels },
    rootfs: { type: 'layers', diff_ids: layers.map(sha256) },
    history: layers.map(() => ({ created, created_by: 'npm run image' })),
  })
  const manifest = blobs.addJson(mediaTypes.manifest, {
    schemaVersion: 2,
    mediaType: mediaTypes.manifest,
    config: descriptor,
    layers: added,
    annotations: config.labels,
  })
  const document = blobs.add(mediaTypes.sbom, Buffer.from(sbom))
  const referrer = blobs.addJson(mediaTypes.manifest, {
    schemaVersion: 2,
    mediaType: mediaTypes.manifest,
    artifactType: mediaTypes.sbom,
    config: blobs.addJson(mediaTypes.empty, {}),
    layers: [document],
    subject: manifest,
  })
  return {
    image: { ...manifest, platform: { architecture, os: 'linux' } },
    sbom: referrer,
    config: descriptor,
    layers: added,
  }
}

const sha256 = (bytes: Uint8Array): string => `sha256:${createHash('sha256').update(bytes).digest('hex')}`
