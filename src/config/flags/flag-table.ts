// The flags that are no configuration field: what to do instead of serving, where the configuration is, and leftovers of old releases.

import { healthzPort, metricsPort } from '../load.ts'
import { type Setting, setting } from '../setting.ts'
import { fieldSettings } from '../settings-table.ts'

const commands: readonly Setting[] = [
  setting('string', {
    flag: 'config',
    default: '',
    beatsFile: true,
    help: 'Configuration file, YAML or JSON. It replaces every flag that has a field in it.',
  }),
  setting('string', {
    flag: 'write-config-to',
    default: '',
    beatsFile: true,
    help: 'Write the effective configuration to this file and exit.',
  }),
  setting('bool', {
    flag: 'cleanup',
    default: false,
    beatsFile: true,
    help: 'Remove what any mode has programmed on this node and exit.',
  }),
  setting('bool', {
    flag: 'init-only',
    default: false,
    beatsFile: true,
    help: 'Do what needs full privileges and exit; the proxy can then run with CAP_NET_ADMIN alone.',
  }),
  setting('string', {
    flag: 'master',
    default: '',
    beatsFile: true,
    help: 'URL of the API server, instead of the one in the kubeconfig.',
  }),
  setting('version', {
    flag: 'version',
    default: 'false',
    beatsFile: true,
    help: 'Print the version and exit; raw prints all of it, vX.Y.Z sets the version that is reported.',
  }),
  setting('bool', { flag: 'help', shorthand: 'h', default: false, beatsFile: true, help: 'Print this text and exit.' }),
]

const ignored = 'it has no effect'

const leftovers: readonly Setting[] = [
  setting('int32', {
    flag: 'healthz-port',
    default: healthzPort,
    help: 'Port of the health server if --healthz-bind-address has none. 0 turns the server off.',
    deprecated: 'use --healthz-bind-address',
  }),
  setting('int32', {
    flag: 'metrics-port',
    default: metricsPort,
    help: 'Port of the metrics server if --metrics-bind-address has none.',
    deprecated: 'use --metrics-bind-address',
  }),
  setting('bool', {
    flag: 'cleanup-iptables',
    default: false,
    beatsFile: true,
    help: 'The name of --cleanup until 1.14.',
    deprecated: 'use --cleanup',
  }),
  setting('bool', {
    flag: 'cleanup-ipvs',
    default: true,
    beatsFile: true,
    help: 'Whether --cleanup also removes IPVS virtual servers, until 1.20.',
    deprecated: 'kube-proxy dropped it in 1.21; --cleanup removes IPVS virtual servers unless it is false',
  }),
  setting('string', {
    flag: 'boot-id-file',
    default: '/proc/sys/kernel/random/boot_id',
    help: 'Of a library inside kube-proxy.',
    deprecated: ignored,
  }),
  setting('string', {
    flag: 'machine-id-file',
    default: '/etc/machine-id,/var/lib/dbus/machine-id',
    help: 'Of a library inside kube-proxy.',
    deprecated: ignored,
  }),
]

/** Every flag of the command, sorted by name. */
export const flagSettings: readonly (Setting & { readonly flag: string })[] = [
  ...commands,
  ...fieldSettings,
  ...leftovers,
]
  .filter((row): row is Setting & { readonly flag: string } => row.flag !== undefined)
  .sort((a, b) => (a.flag < b.flag ? -1 : 1))
