// From the command line to what the daemon runs with: flags, the configuration file, defaults, validation.

import { describeError, ProxyError } from '../../lib/errors.ts'
import { type Config, masqueradeBlock, type Unchecked } from '../configuration.ts'
import {
  fromFlags,
  type Given,
  withDeprecatedPorts,
  withHostname,
  withLoggingFlags,
  withPlatformDefaults,
} from '../defaults.ts'
import { gateWarnings } from '../gates.ts'
import { type Loaded, loadConfigFile } from '../load.ts'
import { showValue } from '../setting.ts'
import { settingByPath } from '../settings-table.ts'
import { type FieldError, isValid, validate } from '../validate.ts'
import { flagSettings } from './flag-table.ts'
import { parseFlags } from './pflag.ts'

export interface Options {
  readonly config: Config
  /** '' if none. */
  readonly configFile: string
  readonly writeConfigTo: string
  readonly cleanup: boolean
  /** False: `--cleanup` is to leave IPVS virtual servers alone (`--cleanup-ipvs=false`). */
  readonly cleanupIpvs: boolean
  readonly initOnly: boolean
  readonly master: string
  /** '' if not asked for, 'true', 'raw', or the version to report (`v1.2.3`), which does not end the program. */
  readonly version: string
  readonly help: boolean
  /** Each to be logged once. */
  readonly warnings: readonly string[]
  /** Every flag by name with its effective text, for the log and for /flagz. A file does not change them. */
  readonly flags: ReadonlyMap<string, string>
  readonly given: ReadonlySet<string>
}

/**
 * Throws a ProxyError: 'usage' if the command line cannot be parsed, 'config' if the configuration is bad. With `help`,
 * or `version` 'true' or 'raw', nothing beyond the command line is looked at and `config` holds the defaults.
 */
export function resolveOptions(argv: readonly string[], readFile: (path: string) => string): Options {
  const { given, rest, warnings } = parseFlags(flagSettings, argv)
  const flag = (name: string) => (given.get(name) ?? flagSettings.find((row) => row.flag === name)?.default) as unknown
  const stray = rest.find((argument) => argument !== '')
  const help = flag('help') as boolean
  if (stray !== undefined && !help) {
    throw new ProxyError('usage', `unexpected argument ${JSON.stringify(stray)}: allowed are flags only`)
  }
  const version = flag('version') === 'false' ? '' : (flag('version') as string)
  const configFile = flag('config') as string
  const onlyPrints = help || version === 'true' || version === 'raw'
  const { config, more } = onlyPrints
    ? { config: withPlatformDefaults(fromFlags(new Map())) as Config, more: [] }
    : resolveConfig({ given, readFile, configFile, applyPorts: flag('write-config-to') === '', ports: portsOf(flag) })
  return {
    config,
    configFile,
    writeConfigTo: flag('write-config-to') as string,
    cleanup: (flag('cleanup') as boolean) || (flag('cleanup-iptables') as boolean),
    cleanupIpvs: flag('cleanup-ipvs') as boolean,
    initOnly: flag('init-only') as boolean,
    master: flag('master') as string,
    version,
    help,
    warnings: [...warnings, ...more],
    flags: new Map(flagSettings.map((row) => [row.flag, showValue(row, given.get(row.flag) ?? row.default)])),
    given: new Set(given.keys()),
  }
}

interface Inputs {
  readonly given: Given
  readonly readFile: (path: string) => string
  readonly configFile: string
  readonly applyPorts: boolean
  readonly ports: { readonly healthz: number; readonly metrics: number }
}

const portsOf = (flag: (name: string) => unknown): Inputs['ports'] => ({
  healthz: flag('healthz-port') as number,
  metrics: flag('metrics-port') as number,
})

function resolveConfig(inputs: Inputs): { config: Config; more: string[] } {
  const { given, configFile } = inputs
  const loaded = configFile === '' ? undefined : load(configFile, inputs.readFile)
  const made = loaded === undefined ? configOfFlags(inputs) : withLoggingFlags(loaded.config, given)
  const config = withHostname(withPlatformDefaults(made), given)
  if (!isValid(config)) {
    const errors = validate(config).map((error) => describe(error, config, given, loaded && { configFile, loaded }))
    throw new ProxyError('config', errors.join('; '))
  }
  return { config, more: [...(loaded?.warnings ?? []), ...gateWarnings(config.featureGates)] }
}

function configOfFlags({ given, applyPorts, ports }: Inputs): Unchecked {
  const config = fromFlags(given)
  return applyPorts ? withDeprecatedPorts(config, ports) : config
}

function load(path: string, readFile: (path: string) => string): Loaded {
  let text: string
  try {
    text = readFile(path)
  } catch (error) {
    throw new ProxyError('config', `--config: cannot read ${path}: ${describeError(error)}`, { cause: error })
  }
  return loadConfigFile(path, text)
}

/** Where the value came from, what it is, and what is allowed. */
function describe(
  error: FieldError,
  config: Unchecked,
  given: Given,
  file: { configFile: string; loaded: Loaded } | undefined,
): string {
  const field = error.path.replace(/\[\d+\]$/, '')
  if (field === 'metricsBindAddress' && config.metricsBindAddress === '') {
    return '--metrics-port: given 0, must be a port from 1 to 65535: the metrics server cannot be turned off'
  }
  const told = `given ${JSON.stringify(error.value)}, ${error.message}`
  const row = settingByPath.get(field)
  if (file === undefined || (row?.beatsFile && row.flag !== undefined && given.has(row.flag))) {
    return `--${flagOf(field, config)}: ${told}`
  }
  const line = file.loaded.lines.get(error.path) ?? file.loaded.lines.get(field)
  return `${file.configFile}${line === undefined ? '' : `:${line}`}: ${error.path}: ${told}`
}

/** Without a file the nftables block is fed by the flags of the iptables block. */
function flagOf(field: string, config: Unchecked): string {
  const stand = masqueradeBlock(config.mode) === 'nftables' ? field.replace(/^nftables\./, 'iptables.') : field
  return settingByPath.get(field)?.flag ?? settingByPath.get(stand)?.flag ?? field
}
