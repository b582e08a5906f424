// Which of upstream's sig-network specs run, and why the others do not. Pure.

export interface Skip {
  /** Part of a regular expression that ginkgo compares with the whole name of a spec. */
  readonly pattern: string
  readonly reason: string
}

export const focus = '\\[sig-network\\]'

export const skips: readonly Skip[] = [
  { pattern: 'NetworkPolicy|Netpol', reason: 'the work of a network plugin, not of a service proxy' },
  { pattern: 'LoadBalancer|Loadbalancing|GCE', reason: 'wants the load balancer of a cloud' },
  { pattern: 'Ingress', reason: 'wants an ingress controller' },
  {
    pattern: 'SCTP',
    reason:
      'wants sockets of SCTP, which the kernel of the machine does not have; two specs about rules run by themselves',
  },
  {
    pattern: 'Disruptive',
    reason: 'wants SSH to nodes, or restarts parts of the cluster while others run; one of them runs by itself',
  },
  { pattern: 'Internet', reason: 'wants the internet' },
  {
    pattern: 'iperf|Performance|latency|DNS scale',
    reason: 'a benchmark; the latency of endpoints is measured by itself',
  },
  { pattern: 'Experimental|Cluster Network', reason: 'of a feature that is off' },
  { pattern: 'DNS configMap', reason: 'replaces the configuration of CoreDNS while others use it' },
]

/** Specs that a pattern above excludes, and which work here when they run by themselves. */
export const alone: readonly string[] = [
  'for internal traffic on Type LoadBalancer',
  'Service endpoints latency',
  'SCTP service with pod and endpoints',
  'SCTP HostPort',
  'should work after restarting kube-proxy',
]

/** Quick specs that touch everything which a proxy does: the short form runs these. */
export const shortList: readonly string[] = [
  'Services should serve a basic endpoint from pods',
  'Services should serve multiport endpoints from pods',
  'Services should be able to create a functioning NodePort service',
  'Services should be able to change the type from',
  'Services should have session affinity work for',
  'Services should be able to switch session affinity for service with type clusterIP',
  'Services should allow pods to hairpin back to themselves through services',
  'Services should be rejected when no endpoints exist',
  'Services should be possible to connect to a service via ExternalIP',
  'Services should preserve source pod IP for traffic thru service cluster IP',
  'Services should support externalTrafficPolicy=Local for type=NodePort',
  'Services should fail health check node port if there are only terminating endpoints',
  'Services should connect to the (named )?ports exposed by restartable init containers',
  'Services should create endpoints for unready pods',
  'Services should complete a service status lifecycle',
  'Services should delete a collection of services',
  'EndpointSlice should support a Service with multiple',
  'EndpointSlice should create Endpoints and EndpointSlices for Pods matching a Service',
  'DNS should provide DNS for the cluster',
  'DNS should provide DNS for services',
  'Conntrack should be able to preserve UDP traffic when server pod cycles for a ClusterIP service and client is hostNetwork',
  'Conntrack should be able to preserve UDP traffic when initial unready endpoints get ready',
  'KubeProxy should set TCP CLOSE_WAIT timeout',
  'NoSNAT Should be able to send traffic between Pods without SNAT',
  'Networking should check kube-proxy urls',
  'Service CIDRs should create Services and serve on different Service CIDRs',
  'Traffic Distribution should route traffic to an endpoint in the same zone when using PreferClose',
  'IPv6DualStack\\] should create service with ipv',
]

export const escapeName = (name: string): string => name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')

/** Specs that a mode cannot pass, and why. kube-proxy has no userspace mode to compare with. */
export const expectedFailures: readonly { readonly mode: string; readonly pattern: string; readonly reason: string }[] =
  [
    ...[
      'should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes',
      'should preserve source pod IP for traffic thru service cluster IP',
      'should support externalTrafficPolicy=Local for type=NodePort',
    ].map((pattern) => ({
      mode: 'userspace',
      pattern,
      reason:
        'The spec wants the address of the client. A relay makes its own connection to the pod, from the address of the node.',
    })),
    {
      mode: 'userspace',
      pattern:
        'should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local',
      reason:
        'A pod of another node asks a node port, and must fail. With `clusterCIDR` every pod counts as local, so that all proxies forward it; with kube-proxy the connection fails because the answer takes another way, with a relay it works.',
    },
  ]

export const findExpectedFailure = (mode: string, name: string) =>
  expectedFailures.find((one) => one.mode === mode && name.includes(one.pattern))
