// The resources that this proxy reads from the API server, with kube-proxy's selectors. Its ClusterRole allows nothing else.

import type { Steps } from '../../lib/yielding.ts'
import type {
  NodeCapacityRecord,
  NodeRecord,
  ServiceCidrRecord,
  ServiceRecord,
  SliceRecord,
} from '../../model/types.ts'
import { decodeEndpointSlice, decodeEndpointSliceInSteps, headlessLabel } from '../decode/decode-endpoint-slice.ts'
import { decodeNode, decodeNodeCapacity, decodeServiceCidr } from '../decode/decode-node.ts'
import { decodeService, decodeServiceInSteps, proxyNameLabel } from '../decode/decode-service.ts'
import type { DecodedRecord } from '../decode/fields.ts'
import { endpointSlice, node, nodeCapacity, service, serviceCidr } from '../protobuf/message-tables.ts'
import { readOrdinarySlice } from '../protobuf/read-endpoint-slice.ts'
import type { MessageTable } from '../protobuf/read-message.ts'
import { readOrdinaryService } from '../protobuf/read-service.ts'

export interface WatchedResource<R> {
  /** Path of the collection. */
  readonly resource: string
  readonly kind: string
  readonly labelSelector?: string
  readonly fieldSelector?: string
  /** True if the server may not support the selector. The decoder filters as well, so that the reflector can do without it. */
  readonly fieldSelectorOptional?: boolean
  /** What follows while the API server does not answer, for the warning, if the reader may not expect it. */
  readonly effect?: string
  /** The fields of the protobuf form that `decode` reads. */
  readonly protobuf: MessageTable
  readonly decode: (json: unknown) => DecodedRecord<R>
  /** As `decode`, for objects that may be large. */
  readonly decodeInSteps?: (json: unknown) => Steps<DecodedRecord<R>>
}

export const services: WatchedResource<ServiceRecord> = {
  resource: '/api/v1/services',
  kind: 'Service',
  labelSelector: `!${proxyNameLabel}`,
  fieldSelector: 'spec.clusterIP!=None',
  fieldSelectorOptional: true,
  protobuf: { ...service, readOrdinary: readOrdinaryService },
  decode: decodeService,
  decodeInSteps: decodeServiceInSteps,
}

export const endpointSlices: WatchedResource<SliceRecord> = {
  resource: '/apis/discovery.k8s.io/v1/endpointslices',
  kind: 'EndpointSlice',
  labelSelector: `!${headlessLabel}`,
  protobuf: { ...endpointSlice, readOrdinary: readOrdinarySlice },
  decode: decodeEndpointSlice,
  decodeInSteps: decodeEndpointSliceInSteps,
}

export const serviceCidrs: WatchedResource<ServiceCidrRecord> = {
  resource: '/apis/networking.k8s.io/v1/servicecidrs',
  kind: 'ServiceCIDR',
  protobuf: serviceCidr,
  decode: decodeServiceCidr,
}

export const describeOwnNode = (name: string): WatchedResource<NodeRecord> => ({
  resource: '/api/v1/nodes',
  kind: 'Node',
  fieldSelector: `metadata.name=${name}`,
  protobuf: node,
  decode: decodeNode,
})

/** All Nodes, of which only the capacity is read; only while weights follow from it. */
export const nodeCapacities: WatchedResource<NodeCapacityRecord> = {
  resource: '/api/v1/nodes',
  kind: 'Node',
  effect: 'weights by node capacity stay as they are; before the first answer they are equal',
  protobuf: nodeCapacity,
  decode: decodeNodeCapacity,
}
