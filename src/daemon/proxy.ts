// The command behind `bin/kube-proxy` and `sluice proxy`: flags to configuration, then run, write, clean up or print.

import { readFileSync, writeFileSync } from 'node:fs'
import type { Mode } from '../backend/backend.ts'
import { findMode, modes } from '../backend/modes.ts'
import type { LeftoverTraits, ProxyMode } from '../backend/proxy-mode.ts'
import type { Config } from '../config/configuration.ts'
import { watchConfigFile } from '../config/file-watch.ts'
import { usage } from '../config/flags/flag-help.ts'
import { type Options, resolveOptions } from '../config/flags/options.ts'
import { kubernetesVersion } from '../config/kubernetes-version.ts'
import { sluiceVersion } from '../config/sluice-version.ts'
import { formatConfig } from '../config/write-config.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import { createLogger, type Logger } from '../lib/log.ts'
import { sleep, systemClock } from '../lib/time.ts'
import { settingsOf } from './backend-settings.ts'
import { runDaemon } from './daemon.ts'

/** Resolves with the exit status. */
export async function proxy(argv: readonly string[]): Promise<number> {
  let options: Options
  try {
    options = resolveOptions([...argv], (path) => readFileSync(path, 'utf8'))
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    if (error.code === 'usage') process.stderr.write(usage())
    process.stderr.write(`Error: ${describeError(error)}\n`)
    return 1
  }
  if (options.help) return print(usage())
  if (options.version === 'true' || options.version === 'raw') return print(versionText(options.version))

  const { config } = options
  const log = createLogger({ ...logOptions(config), write: (line) => process.stderr.write(line) })
  for (const warning of options.warnings) log.warn(warning)
  for (const [flag, value] of options.flags) log.v(1, 'FLAG', { flag, value })
  try {
    if (options.writeConfigTo !== '') {
      writeFileSync(options.writeConfigTo, formatConfig(config))
      log.info('wrote the configuration', { file: options.writeConfigTo })
      return 0
    }
    if (options.cleanup) return await cleanEverything(options, log)
    await runUntilStopped(options, log)
    return 0
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    log.error('cannot go on', { error: describeError(error), ...error.fields })
    return 1
  }
}

async function runUntilStopped(options: Options, log: ReturnType<typeof createLogger>): Promise<void> {
  const stop = new AbortController()
  const watch =
    options.configFile === ''
      ? undefined
      : watchConfigFile(options.configFile, (reason) =>
          stop.abort(new ProxyError('config-changed', `${options.configFile} ${reason}: restart to use it`)),
        )
  let received: NodeJS.Signals | undefined
  const onSignal = (signal: NodeJS.Signals) => {
    received = signal
    stop.abort(new Error(`stopped by ${signal}`))
  }
  process.once('SIGTERM', onSignal)
  process.once('SIGINT', onSignal)
  try {
    const { signal } = stop
    const retire = () => retireOtherModes(options.config, log, signal)
    const seamless = isHandedOver(options.config.mode)
    const backend = findMode(options.config.mode).makeBackend(settingsOf(options.config))
    // A mode that cannot work here says so before anything is removed that does.
    await backend.families()
    if (!seamless) await retire()
    await runDaemon({
      options,
      backend,
      log,
      signal,
      ...(seamless ? { onServing: retire } : {}),
    })
  } finally {
    watch?.close()
    process.off('SIGTERM', onSignal)
    process.off('SIGINT', onSignal)
  }
  // Upstream has no handler and dies by the signal; supervisors read that from the wait status.
  if (received !== undefined) process.kill(process.pid, received)
}

const retirePauseMs = 5_000
/** Connections through another mode's data plane that have not ended by then are cut. */
const retireLimitMs = 3_600_000

/** True if rules of other modes are removed only after the first sync, since connections live in the data plane of the old or new mode. */
const isHandedOver = (mode: Mode): boolean =>
  findMode(mode).leftovers.handover !== undefined ||
  modes.some(({ leftovers }) => leftovers.handover?.isPresent() === true)

/**
 * Removes what other modes left: before the proxy starts, as upstream does, or once it serves if the modes hand over. As upstream, modes
 * that cannot tell their leftovers apart leave each other's alone.
 */
async function retireOtherModes(config: Config, log: Logger, signal: AbortSignal): Promise<void> {
  const { sharedWith } = findMode(config.mode).leftovers
  const spared = { cidrs: config.ipvs.excludeCIDRs }
  const end = systemClock.monotonic() + retireLimitMs
  const others = modes.filter(
    ({ name, leftovers }) => name !== config.mode && (sharedWith === undefined || leftovers.sharedWith !== sharedWith),
  )
  const retire = async ({ handover, cleanup }: LeftoverTraits, again: boolean): Promise<boolean> => {
    if (handover !== undefined) return handover.retire(log, again, spared)
    await cleanup(log, spared)
    return true
  }
  const busy: ProxyMode[] = []
  const attempt = async (mode: ProxyMode, work: () => Promise<boolean>): Promise<void> => {
    try {
      if (!(await work())) busy.push(mode)
    } catch (error) {
      log.warn('cannot remove what another mode left', { mode: mode.name, error: describeError(error) })
    }
  }
  for (const mode of others) await attempt(mode, () => retire(mode.leftovers, false))
  while (busy.length > 0) {
    await sleep(systemClock, retirePauseMs, signal)
    const over = systemClock.monotonic() > end
    for (const mode of busy.splice(0)) {
      await attempt(mode, async () => {
        if (!over) return retire(mode.leftovers, true)
        await mode.leftovers.cleanup(log, spared)
        return true
      })
    }
  }
}

async function cleanEverything({ keptModes, config }: Options, log: Logger): Promise<number> {
  let failed = 0
  for (const { name: mode, leftovers } of modes) {
    if (keptModes.includes(mode)) continue
    try {
      await leftovers.cleanup(log, { cidrs: config.ipvs.excludeCIDRs })
    } catch (error) {
      failed++
      log.error('cleanup failed', { mode, error: describeError(error) })
    }
  }
  if (failed > 0) log.error('something was left behind; see above')
  return failed > 0 ? 1 : 0
}

function logOptions({ logging }: Config) {
  const { verbosity, vmodule } = logging
  return { format: logging.format === 'json' ? ('json' as const) : ('text' as const), verbosity, vmodule }
}

function versionText(asked: 'true' | 'raw'): string {
  const { major, minor, text } = kubernetesVersion
  if (asked === 'true') return `Kubernetes ${text}\n`
  return `${JSON.stringify({ major: String(major), minor: String(minor), gitVersion: text, sluice: sluiceVersion })}\n`
}

function print(text: string): number {
  process.stdout.write(text)
  return 0
}
