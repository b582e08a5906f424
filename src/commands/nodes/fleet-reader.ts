// Reads what the API server knows about the proxies of all nodes: Nodes, the pods of proxies, and the Leases in which Sluice reports.

import { type NodeReport, parseNodeReport, reportAnnotation } from '../../inspect/node-report.ts'
import { type ApiRequester, listObjects } from '../../kube/api-objects.ts'
import { asObject, readString } from '../../kube/decode/fields.ts'
import { describeError, ProxyError } from '../../lib/errors.ts'
import { listProxyPods, type ProxyPod } from '../sources/node-proxy.ts'

export interface FleetNode {
  readonly name: string
  /** Undefined if Sluice does not report there. */
  readonly report: NodeReport | undefined
  /** Undefined if no pod of a proxy is on the node. */
  readonly pod: ProxyPod | undefined
}

export interface Fleet {
  readonly nodes: readonly FleetNode[]
  /** Sentences about what could not be read. */
  readonly remarks: readonly string[]
}

export interface FleetQuery {
  /** The namespace of the Leases. */
  readonly namespace: string
  /** The namespace of the pods. */
  readonly proxyNamespace: string
}

export async function readFleet(api: ApiRequester, { namespace, proxyNamespace }: FleetQuery): Promise<Fleet> {
  const remarks: string[] = []
  const tryRead = async <T>(what: string, read: Promise<readonly T[]>): Promise<readonly T[]> =>
    read.catch((error: unknown) => {
      if (!(error instanceof ProxyError)) throw error
      remarks.push(`${what} could not be read: ${describeError(error)}`)
      return []
    })
  const names = (await listObjects(api, '/api/v1/nodes', {})).map((object) => nameOf(object))
  const path = `/apis/coordination.k8s.io/v1/namespaces/${encodeURIComponent(namespace)}/leases`
  const leases = await tryRead('Reports', listObjects(api, path, {}))
  const pods = await tryRead('Pods of proxies', listProxyPods(api, proxyNamespace))
  const reports = new Map(leases.map((lease) => [nameOf(lease), readReport(lease)]))
  const nodes = names.sort().map((name) => ({
    name,
    report: reports.get(name),
    pod: pods.find((pod) => pod.node === name && pod.isRunning) ?? pods.find((pod) => pod.node === name),
  }))
  return { nodes, remarks }
}

const nameOf = (object: unknown): string => readString(asObject(asObject(object)?.metadata), 'name')

/** A report counts only for the node whose name the Lease has. */
function readReport(lease: unknown): NodeReport | undefined {
  const annotations = asObject(asObject(asObject(lease)?.metadata)?.annotations)
  const report = parseNodeReport(readString(annotations, reportAnnotation))
  return report?.node === nameOf(lease) ? report : undefined
}

/** Returns the names of all services; undefined if they cannot be listed. */
export async function listServiceNames(api: ApiRequester): Promise<readonly string[] | undefined> {
  try {
    const services = await listObjects(api, '/api/v1/services', {})
    return services.map((one) => `${readString(asObject(asObject(one)?.metadata), 'namespace')}/${nameOf(one)}`)
  } catch (error) {
    if (error instanceof ProxyError) return undefined
    throw error
  }
}
