// Records Kubernetes Events about services, other objects and this node, with the reasons and actions that kube-proxy uses.

import type { InvalidManifest } from '../http/admin.ts'
import type { EventRecorder } from '../kube/events.ts'
import type { Problem } from '../model/types.ts'
import { describeInvalidManifest } from './manifest-problems.ts'

export interface SyncEventsOptions {
  readonly recorder: Pick<EventRecorder, 'record'>
  /** Name of this node. */
  readonly node: string
  /** Returns the uid of a service, '' if the service is unknown. */
  readonly uidOf: (service: string) => string
}

/** Reason, action and note of an Event. */
interface Message {
  readonly reason: string
  readonly action: string
  readonly note: string
}

const apiVersions: Readonly<Record<string, string>> = {
  EndpointSlice: 'discovery.k8s.io/v1',
  ServiceCIDR: 'networking.k8s.io/v1',
}

export class SyncEvents {
  readonly #options: SyncEventsOptions

  constructor(options: SyncEventsOptions) {
    this.#options = options
  }

  /** `service` is '' if an entry belongs to no service; then nothing is recorded. */
  onService(service: string, { reason, action, note }: Message): void {
    if (service === '') return
    const { node, uidOf } = this.#options
    const object = { kind: 'Service', object: service, uid: uidOf(service) }
    this.#record(object, { reason, action, note: `node ${node}: ${note}` })
  }

  onNode(message: Message): void {
    this.#record({ kind: 'Node', object: this.#options.node, uid: '' }, message)
  }

  onProblem(problem: Problem): void {
    const note = `${problem.field}: ${problem.message}`
    this.#record(problem, { reason: 'InvalidField', action: 'ReadObject', note })
  }

  /** An Event for each file: a second file that is invalid must not be hidden in the series of the first. */
  onManifest(problem: InvalidManifest): void {
    const note = `${describeInvalidManifest(problem)}; the objects of its last valid content stay`
    const { recorder, node } = this.#options
    const regarding = { apiVersion: 'v1', kind: 'Node', namespace: '', name: node, fieldPath: problem.file }
    recorder.record({ type: 'Warning', reason: 'InvalidManifest', action: 'ApplyManifest', note, regarding })
  }

  #record({ kind, object, uid }: Pick<Problem, 'kind' | 'object' | 'uid'>, message: Message): void {
    const slash = object.indexOf('/')
    const [namespace, name] = slash < 0 ? ['', object] : [object.slice(0, slash), object.slice(slash + 1)]
    const regarding = { apiVersion: apiVersions[kind] ?? 'v1', kind, namespace, name, ...(uid && { uid }) }
    this.#options.recorder.record({ type: 'Warning', ...message, regarding })
  }
}
