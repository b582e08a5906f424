// What `kubectl explain` says about the fields that every kind shares, and about services, endpoints and ranges of addresses. Pure.

/** Texts by the name of a schema and then of its field; '' is the object itself. */
export type Descriptions = Readonly<Record<string, Readonly<Record<string, string>>>>

const core = (kind: string) => `io.k8s.api.core.v1.${kind}`
const meta = (kind: string) => `io.k8s.apimachinery.pkg.apis.meta.v1.${kind}`
const discovery = (kind: string) => `io.k8s.api.discovery.v1.${kind}`
const networking = (kind: string) => `io.k8s.api.networking.v1.${kind}`

/** For fields that mean the same in every object. */
export const commonDescriptions: Readonly<Record<string, string>> = {
  apiVersion: 'Group and version of the API that this object is written for.',
  kind: 'Which sort of object this is.',
  metadata: 'Name, labels and what the server records about the object.',
  spec: 'What the author of the object wants.',
  status: 'What is the case now.',
}

const condition = {
  type: 'Which statement this condition makes, such as Ready.',
  status: 'Whether the statement holds: True, False or Unknown.',
}

export const objectDescriptions: Descriptions = {
  [meta('OwnerReference')]: {
    '': 'An object that owns this one; this one is deleted after its owner.',
    name: 'Name of the owner.',
    uid: 'Identity of the owner; an owner that was made again has another one.',
    controller: 'Whether the owner is the one that manages this object.',
    blockOwnerDeletion: 'Kept for clients; this server deletes owners without waiting.',
  },
  [meta('ManagedFieldsEntry')]: {
    '': 'The fields that one client set, so that server-side apply can find conflicts.',
    manager: 'Name of the client.',
    operation: 'How the client wrote: Apply or Update.',
    time: 'When the client last changed one of its fields.',
    fieldsType: 'Format of the list of fields; always FieldsV1.',
    fieldsV1: 'The fields, as a tree.',
    subresource: 'The subresource that was written, such as status; empty for the object itself.',
  },
  [meta('ObjectMeta')]: {
    '': 'Name, labels and what the server records about an object.',
    name: 'Name of the object, unique for its kind and namespace.',
    generateName: 'Beginning of a name that the server completes, if no name is given.',
    namespace: 'Namespace of the object; empty for kinds without namespaces.',
    selfLink: 'Not used any more.',
    uid: 'Identity that the server gives once; an object of the same name that is made later has another one.',
    resourceVersion: 'Version of the object. A write that sends it fails if someone else has written since.',
    generation: 'Counts the changes of what is wanted.',
    creationTimestamp: 'When the object was created.',
    deletionTimestamp: 'When the deletion was requested, or will take effect.',
    deletionGracePeriodSeconds: 'Seconds between the request to delete and the end of the object.',
    labels: 'Names and values by which selectors find the object.',
    annotations: 'Names and values for tools; no selector reads them.',
    ownerReferences: 'Objects that own this one; it is deleted after the last of them.',
    finalizers: 'Names that must be removed before a deleted object goes away.',
    managedFields: 'Which client set which fields.',
  },
  [meta('Condition')]: {
    '': 'One statement about the present state of an object.',
    ...condition,
    observedGeneration: 'The generation of the object that the statement is about.',
    lastTransitionTime: 'When the status last changed.',
    reason: 'One word that says why.',
    message: 'A sentence for people.',
  },
  [core('ObjectReference')]: {
    '': 'Names another object.',
    name: 'Name of that object.',
    namespace: 'Namespace of that object.',
    uid: 'Identity of that object.',
    resourceVersion: 'Version of that object.',
    fieldPath: 'The part of that object that is meant.',
  },
  [core('Service')]: {
    '': 'A stable address that the proxy forwards to the endpoints behind it.',
  },
  [core('ServiceSpec')]: {
    '': 'How a service is reached, and where its traffic goes.',
    ports: 'The ports of the service.',
    selector: 'Labels of the pods behind the service. Without them, write EndpointSlices yourself.',
    clusterIP:
      'Address inside of the cluster. Empty lets the server choose one; None makes a service without an address.',
    clusterIPs: 'The cluster IP of each family; the first equals clusterIP.',
    type: 'ClusterIP, NodePort, LoadBalancer or ExternalName.',
    externalIPs: 'More addresses on which the nodes accept traffic for this service.',
    sessionAffinity: 'ClientIP sends all connections of a client to one endpoint; None does not.',
    loadBalancerIP: 'Wish for the address of a load balancer; only kept here.',
    loadBalancerSourceRanges: 'CIDRs of the clients that may use the load balancer address; empty allows all.',
    externalName: 'DNS name that an ExternalName service stands for.',
    externalTrafficPolicy:
      'Cluster uses all endpoints for traffic from outside; Local uses those of this node and keeps the source.',
    healthCheckNodePort: 'Port on which each node tells load balancers whether it has local endpoints.',
    publishNotReadyAddresses: 'Whether pods that are not ready count as ready.',
    sessionAffinityConfig: 'Details of the session affinity.',
    ipFamilies: 'IPv4 and IPv6, in the order in which they are preferred.',
    ipFamilyPolicy: 'SingleStack, PreferDualStack or RequireDualStack.',
    allocateLoadBalancerNodePorts: 'Whether a LoadBalancer service also gets node ports.',
    loadBalancerClass: 'Which implementation of load balancers is meant.',
    internalTrafficPolicy: 'Cluster uses all endpoints for traffic from inside; Local only those of this node.',
    trafficDistribution: 'Preference for endpoints nearby: PreferSameZone or PreferSameNode.',
  },
  [core('ServicePort')]: {
    '': 'One port of a service.',
    name: 'Name of the port; needed if there are several.',
    protocol: 'TCP, UDP or SCTP.',
    appProtocol: 'Hint about the protocol above; the proxy does not read it.',
    port: 'Port at the addresses of the service.',
    targetPort: 'Port of the pods, as a number or as the name of a container port.',
    nodePort: 'Port on the nodes, for NodePort and LoadBalancer services; 0 lets the server choose.',
  },
  [core('SessionAffinityConfig')]: {
    '': 'Details of the session affinity.',
    clientIP: 'Affinity by the address of the client.',
  },
  [core('ClientIPConfig')]: {
    '': 'Affinity by the address of the client.',
    timeoutSeconds: 'Seconds after the last connection for which a client keeps its endpoint.',
  },
  [core('ServiceStatus')]: {
    '': 'What is known about a service.',
    loadBalancer: 'Addresses that a load balancer gave to the service.',
    conditions: 'Statements about the service.',
  },
  [core('LoadBalancerStatus')]: { '': 'Addresses of a load balancer.', ingress: 'One entry per address or name.' },
  [core('LoadBalancerIngress')]: {
    '': 'One address of a load balancer.',
    ip: 'IP address.',
    hostname: 'DNS name, if there is no IP address.',
    ipMode:
      'VIP: packets arrive with this destination, and the proxy takes them. Proxy: the load balancer changes the destination.',
    ports: 'State of the single ports.',
  },
  [core('PortStatus')]: {
    '': 'State of one port of a load balancer.',
    port: 'The port.',
    protocol: 'TCP, UDP or SCTP.',
    error: 'Why the port does not work; empty if it does.',
  },
  [core('Endpoints')]: {
    '': 'Older form of EndpointSlices, which only the server writes.',
    subsets: 'Addresses that share their ports.',
  },
  [core('EndpointSubset')]: {
    '': 'Addresses that share their ports.',
    addresses: 'Addresses that are ready.',
    notReadyAddresses: 'Addresses that are not ready.',
    ports: 'Ports of all these addresses.',
  },
  [core('EndpointAddress')]: {
    '': 'Address of one endpoint.',
    ip: 'IP address.',
    hostname: 'Host name of the endpoint.',
    nodeName: 'Node on which the endpoint runs.',
    targetRef: 'The pod behind the address.',
  },
  [core('EndpointPort')]: {
    '': 'A port of endpoints.',
    name: 'Name of the service port that it belongs to.',
    port: 'Port number.',
    protocol: 'TCP, UDP or SCTP.',
    appProtocol: 'Hint about the protocol above.',
  },
  [discovery('EndpointSlice')]: {
    '': 'Some of the endpoints of a service. The label kubernetes.io/service-name names the service.',
    addressType: 'IPv4 or IPv6; the proxy does not use FQDN.',
    endpoints: 'The endpoints.',
    ports: 'Ports that every endpoint of this slice has.',
  },
  [discovery('Endpoint')]: {
    '': 'One endpoint.',
    addresses: 'Its address; the proxy uses the first one.',
    conditions: 'Whether it takes traffic.',
    hostname: 'Host name of the endpoint.',
    targetRef: 'The pod behind the endpoint.',
    deprecatedTopology: 'Not used any more.',
    nodeName: 'Node on which the endpoint runs, for Local policies.',
    zone: 'Zone in which the endpoint runs.',
    hints: 'Which zones and nodes should use this endpoint.',
  },
  [discovery('EndpointConditions')]: {
    '': 'Whether an endpoint takes traffic.',
    ready: 'Takes new connections.',
    serving: 'Could take connections, even while it terminates.',
    terminating: 'Is about to end.',
  },
  [discovery('EndpointHints')]: {
    '': 'Which zones and nodes should use an endpoint.',
    forZones: 'Zones that should use it.',
    forNodes: 'Nodes that should use it.',
  },
  [discovery('ForZone')]: { '': 'A zone that should use an endpoint.', name: 'Name of the zone.' },
  [discovery('ForNode')]: { '': 'A node that should use an endpoint.', name: 'Name of the node.' },
  [discovery('EndpointPort')]: {
    '': 'A port of all endpoints of a slice.',
    name: 'Name of the service port that it belongs to; empty for a service with one port without a name.',
    protocol: 'TCP, UDP or SCTP.',
    port: 'Port number.',
    appProtocol: 'Hint about the protocol above.',
  },
  [networking('ServiceCIDR')]: { '': 'A range from which services get their cluster IPs.' },
  [networking('ServiceCIDRSpec')]: {
    '': 'A range of cluster IPs.',
    cidrs: 'One CIDR, or one of each family. It cannot change later.',
  },
  [networking('ServiceCIDRStatus')]: {
    '': 'State of a range.',
    conditions: 'Statements about the range, such as Ready.',
  },
}
