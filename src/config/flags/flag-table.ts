// The table of all flags: those with a field are rows of settings-table.ts; those without a field are here: commands, the place of the
// configuration file, and flags of old releases. Pure.

import { declareFlag, type FlagSetting } from '../setting.ts'
import { type FieldRow, fieldSettings, healthzPort, metricsPort } from '../settings-table.ts'

const commands = [
  declareFlag('string', {
    flag: 'config',
    default: '',
    beatsFile: true,
    help: 'Configuration file, YAML or JSON. It replaces every flag that has a field in it.',
  }),
  declareFlag('string', {
    flag: 'sluice-config',
    default: '',
    beatsFile: true,
    help: 'File with the settings that kube-proxy does not have (docs/sluice-config.md). SLUICE_CONFIG may name it as well.',
  }),
  declareFlag('string', {
    flag: 'write-config-to',
    default: '',
    beatsFile: true,
    help: 'Write the effective configuration to this file and exit.',
  }),
  declareFlag('bool', {
    flag: 'cleanup',
    default: false,
    beatsFile: true,
    help: 'Remove the rules of every mode from this node and exit.',
  }),
  declareFlag('bool', {
    flag: 'init-only',
    default: false,
    beatsFile: true,
    help: 'Do the steps that need full privileges and exit. The proxy can then run with CAP_NET_ADMIN alone.',
  }),
  declareFlag('string', {
    flag: 'master',
    default: '',
    beatsFile: true,
    help: 'URL of the API server, instead of the one in the kubeconfig.',
  }),
  declareFlag('version', {
    flag: 'version',
    default: 'false',
    beatsFile: true,
    help: 'Print the version and exit. raw prints all of it; vX.Y.Z sets the version that is reported.',
  }),
  declareFlag('bool', {
    flag: 'help',
    shorthand: 'h',
    default: false,
    beatsFile: true,
    help: 'Print this text and exit.',
  }),
]

const noEffect = 'it has no effect'

const oldFlags = [
  declareFlag('int32', {
    flag: 'healthz-port',
    default: healthzPort,
    help: 'Port of the health server if --healthz-bind-address has none. 0 turns the server off.',
    deprecated: 'use --healthz-bind-address',
  }),
  declareFlag('int32', {
    flag: 'metrics-port',
    default: metricsPort,
    help: 'Port of the metrics server if --metrics-bind-address has none.',
    deprecated: 'use --metrics-bind-address',
  }),
  declareFlag('bool', {
    flag: 'cleanup-iptables',
    default: false,
    beatsFile: true,
    help: 'The name of --cleanup until 1.14.',
    deprecated: 'use --cleanup',
  }),
  declareFlag('bool', {
    flag: 'cleanup-ipvs',
    default: true,
    beatsFile: true,
    help: 'Whether --cleanup also removes IPVS virtual servers, until 1.20.',
    deprecated: 'kube-proxy dropped it in 1.21; --cleanup removes IPVS virtual servers unless it is false',
  }),
  declareFlag('string', {
    flag: 'boot-id-file',
    default: '/proc/sys/kernel/random/boot_id',
    help: 'A file that a library inside kube-proxy reads.',
    deprecated: noEffect,
  }),
  declareFlag('string', {
    flag: 'machine-id-file',
    default: '/etc/machine-id,/var/lib/dbus/machine-id',
    help: 'A file that a library inside kube-proxy reads.',
    deprecated: noEffect,
  }),
]

type FlagRow = FieldRow | (typeof commands)[number] | (typeof oldFlags)[number]

/** Every flag of the command, sorted by name. */
export const flagSettings = [...commands, ...fieldSettings, ...oldFlags]
  .filter((row): row is FlagRow & FlagSetting => row.flag !== undefined)
  .sort((a, b) => (a.flag < b.flag ? -1 : 1))
