// A whole Kubernetes cluster on this machine: control plane, nodes, pod network and CoreDNS, in namespaces of their own.

import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { until } from '../support/until.ts'
import { ControlPlane } from './control-plane.ts'
import { type ImageNames, imageNames } from './image-names.ts'
import { NamespaceTree } from './namespaces.ts'
import { type ClusterNetwork, createNetwork } from './network.ts'
import { importImages, startNode } from './node.ts'
import { createRunFolder, type RunFolder } from './run-folder.ts'

export interface RealCluster extends ClusterNetwork {
  readonly run: RunFolder
  readonly plane: ControlPlane
  readonly images: ImageNames
  kubectl: ControlPlane['kubectl']
  apply(manifest: string): Promise<void>
  /** Puts the images of an archive on every node. */
  importArchive(archive: string): Promise<void>
  end(): Promise<void>
}

/** The nodes are in three zones. The cluster has no service proxy yet, so CoreDNS becomes ready only when one is installed. */
export async function startRealCluster(nodeCount: number): Promise<RealCluster> {
  raiseInotifyLimits()
  const run = createRunFolder()
  const tree = await NamespaceTree.create(run.path)
  const end = async () => {
    await tree.end()
    // The kernel ends the processes of the containers one after the other.
    const remove = () => {
      run.remove()
      return true
    }
    await until('removal of the cluster', remove, { limitMs: 60_000, everyMs: 200 })
  }
  try {
    const images = imageNames()
    const network = await createNetwork(tree, run, nodeCount)
    const plane = await ControlPlane.start(network.fabric, run)
    const pauseImage = images.pause[0] as string
    await Promise.all(network.nodes.map((machine) => startNode({ machine, run, plane, pauseImage })))
    const apply = async (manifest: string) => void (await plane.kubectl(['apply', '-f', '-'], { input: manifest }))
    await apply(
      readFileSync(join(import.meta.dirname, 'coredns.yaml'), 'utf8').replace(
        'image: COREDNS-IMAGE',
        `image: ${images.coredns}`,
      ),
    )
    return {
      ...network,
      run,
      plane,
      images,
      kubectl: (args, options) => plane.kubectl(args, options),
      apply,
      importArchive: async (archive) =>
        void (await Promise.all(network.nodes.map((node) => importImages(node, archive)))),
      end,
    }
  } catch (error) {
    await end()
    throw error
  }
}

/** Three kubelets and three containerds need more inotify instances than the default, which is the machine's and not a namespace's. */
function raiseInotifyLimits(): void {
  for (const [name, wanted] of [
    ['max_user_instances', 8192],
    ['max_user_watches', 1_048_576],
  ] as const) {
    const path = `/proc/sys/fs/inotify/${name}`
    if (Number(readFileSync(path, 'utf8')) < wanted) writeFileSync(path, String(wanted))
  }
}
