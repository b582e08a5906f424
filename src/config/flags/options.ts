// Resolves a command line to the options of the daemon: flags, the configuration file, defaults and validation. Pure.

import { describeError, ProxyError } from '../../lib/errors.ts'
import { type Config, findMasqueradeBlock, type Unchecked } from '../configuration.ts'
import {
  fromFlags,
  linuxDefaults,
  type PlatformDefaults,
  withDeprecatedPorts,
  withHostname,
  withLoggingFlags,
  withPlatformDefaults,
} from '../defaults.ts'
import { findGateWarnings } from '../gates.ts'
import { type Loaded, loadConfigFile } from '../load.ts'
import { showValue } from '../setting.ts'
import { settingByPath } from '../settings-table.ts'
import { defaultSluiceConfig, loadSluiceConfig, type SluiceConfig } from '../sluice-config.ts'
import { type FieldError, isValid, validate } from '../validate.ts'
import { flagSettings } from './flag-table.ts'
import { parseFlags } from './parse-flags.ts'

export interface Options {
  readonly config: Config
  /** Settings of SluiceConfiguration, which kube-proxy does not have. */
  readonly sluice: SluiceConfig
  /** '' if there is none. */
  readonly sluiceFile: string
  /** '' if there is none. */
  readonly configFile: string
  readonly writeConfigTo: string
  readonly cleanup: boolean
  /** The modes whose leftovers `--cleanup` leaves alone: ipvs with `--cleanup-ipvs=false`. */
  readonly keptModes: readonly string[]
  readonly initOnly: boolean
  readonly master: string
  /** The version to report (`v1.2.3`); '' if none is given. */
  readonly version: string
  /** Lines to log once. */
  readonly warnings: readonly string[]
  /** Text of every flag by name, for the log and for /flagz. A file does not change it. */
  readonly flags: ReadonlyMap<string, string>
  /** Names of the flags that were given. */
  readonly given: ReadonlySet<string>
}

type ReadFile = (path: string) => string
type Environment = Readonly<Record<string, string | undefined>>

/**
 * Throws a ProxyError: 'usage' if the command line cannot be parsed, 'config' if the configuration is not valid. A command line that
 * only asks for a text is answered by print-request.ts.
 */
export function resolveOptions(
  argv: readonly string[],
  readFile: ReadFile,
  env: Environment = {},
  platform: PlatformDefaults = linuxDefaults,
): Options {
  const commandLine = parseFlags(flagSettings, argv)
  const { values, rest, warnings } = commandLine
  const stray = rest.find((argument) => argument !== '')
  if (stray !== undefined) {
    throw new ProxyError('usage', `unexpected argument ${JSON.stringify(stray)}: allowed are flags only`)
  }
  const { config, configWarnings } = resolveConfig(commandLine, readFile, platform)
  const sluiceFile = values['sluice-config'] || env.SLUICE_CONFIG || ''
  return {
    config,
    sluice: sluiceFile === '' ? defaultSluiceConfig() : loadSluice(sluiceFile, readFile),
    sluiceFile,
    configFile: values.config,
    writeConfigTo: values['write-config-to'],
    cleanup: values.cleanup || values['cleanup-iptables'],
    keptModes: values['cleanup-ipvs'] ? [] : ['ipvs'],
    initOnly: values['init-only'],
    master: values.master,
    version: values.version === 'false' ? '' : values.version,
    warnings: [...warnings, ...configWarnings],
    flags: new Map(flagSettings.map((row) => [row.flag, showValue(row, values[row.flag])])),
    given: commandLine.given,
  }
}

type Flags = ReturnType<typeof parseFlags<(typeof flagSettings)[number]>>

function resolveConfig(
  flags: Flags,
  readFile: ReadFile,
  platform: PlatformDefaults,
): { config: Config; configWarnings: string[] } {
  const configFile = flags.values.config
  const loaded = configFile === '' ? undefined : load(configFile, readFile)
  const built = loaded === undefined ? buildFromFlags(flags) : withLoggingFlags(loaded.config, flags)
  const unchecked = withHostname(withPlatformDefaults(built, platform), flags)
  const refused = findModeError(unchecked, platform)
  if (refused !== undefined) throw new ProxyError('config', describe(refused, { unchecked, flags, loaded }))
  const config = assertValid(unchecked, (error) => describe(error, { unchecked, flags, loaded }))
  return { config, configWarnings: [...(loaded?.warnings ?? []), ...findGateWarnings(config.featureGates)] }
}

/** On Linux, `validate` says which modes there are; other systems have fewer. */
function findModeError({ mode }: Unchecked, { name, modes }: PlatformDefaults): FieldError | undefined {
  if (name === linuxDefaults.name || modes.includes(mode)) return undefined
  const message = `must be ${modes.join(' or ')}: ${name} has no other mode`
  return { field: 'KubeProxyConfiguration.Mode.ProxyMode', path: 'mode', value: mode, message }
}

/** Throws an error that describes every invalid field. */
function assertValid(config: Unchecked, describeField: (error: FieldError) => string): Config {
  if (isValid(config)) return config
  throw new ProxyError('config', validate(config).map(describeField).join('; '))
}

function buildFromFlags(flags: Flags): Unchecked {
  const { values } = flags
  const config = fromFlags(flags)
  if (values['write-config-to'] !== '') return config
  return withDeprecatedPorts(config, { healthz: values['healthz-port'], metrics: values['metrics-port'] })
}

const load = (path: string, readFile: ReadFile): Loaded => loadConfigFile(path, readText('config', path, readFile))

const loadSluice = (path: string, readFile: ReadFile): SluiceConfig =>
  loadSluiceConfig(path, readText('sluice-config', path, readFile))

function readText(flag: string, path: string, readFile: ReadFile): string {
  try {
    return readFile(path)
  } catch (error) {
    throw new ProxyError('config', `--${flag}: cannot read ${path}: ${describeError(error)}`, { cause: error })
  }
}

interface Origin {
  readonly unchecked: Unchecked
  readonly flags: Flags
  /** Undefined without a file. */
  readonly loaded: Loaded | undefined
}

/** Says where the value came from, what it is, and what is allowed. */
function describe(error: FieldError, { unchecked, flags, loaded }: Origin): string {
  const field = error.path.replace(/\[\d+\]$/, '')
  if (field === 'metricsBindAddress' && unchecked.metricsBindAddress === '') {
    return '--metrics-port: given 0, must be a port from 1 to 65535: the metrics server cannot be turned off'
  }
  const problem = `given ${JSON.stringify(error.value)}, ${error.message}`
  const row = settingByPath.get(field)
  if (loaded === undefined || (row?.beatsFile && row.flag !== undefined && flags.given.has(row.flag))) {
    return `--${findFlag(field, unchecked)}: ${problem}`
  }
  const line = loaded.lines.get(error.path) ?? loaded.lines.get(field)
  return `${flags.values.config}${line === undefined ? '' : `:${line}`}: ${error.path}: ${problem}`
}

/** Without a file, the flags of the iptables block feed the nftables block. */
function findFlag(field: string, config: Unchecked): string {
  const source = findMasqueradeBlock(config.mode) === 'nftables' ? field.replace(/^nftables\./, 'iptables.') : field
  return settingByPath.get(field)?.flag ?? settingByPath.get(source)?.flag ?? field
}
