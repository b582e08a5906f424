// The command behind `bin/kube-proxy` and `sluice proxy`: resolves the flags, then runs the daemon, writes the configuration or cleans up.

import { readFileSync, writeFileSync } from 'node:fs'
import { findMode, modes, proxyDefaultMode } from '../backend/modes.ts'
import type { Config } from '../config/configuration.ts'
import { watchConfigFile } from '../config/file-watch.ts'
import { formatUsage } from '../config/flags/flag-help.ts'
import { type Options, resolveOptions } from '../config/flags/options.ts'
import { formatConfig } from '../config/write-config.ts'
import { Closers } from '../lib/closers.ts'
import { describeError, ProxyError } from '../lib/errors.ts'
import { createLogger, type Logger, type RootLogger } from '../lib/log.ts'
import { systemClock } from '../lib/time.ts'
import { platform } from '../sys/platform/platform.ts'
import { makeSettings } from './backend-settings.ts'
import { runDaemon } from './daemon.ts'
import { LogOutput } from './log-output.ts'
import { retireOtherModes } from './retire-modes.ts'
import { RunningProxies } from './running-proxies.ts'

/** Resolves with the exit status. */
export async function runProxyCommand(argv: readonly string[]): Promise<number> {
  const output = new LogOutput(process.stderr)
  let options: Options
  try {
    options = resolveOptions(argv, (path) => readFileSync(path, 'utf8'), process.env, describePlatform())
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    if (error.code === 'usage') process.stderr.write(formatUsage())
    process.stderr.write(`Error: ${describeError(error)}\n`)
    return 1
  }
  const { format, verbosity, vmodule } = options.config.logging
  const log = createLogger({ format, verbosity, vmodule, write: output.write })
  output.onRecovery = (lines, reason) => log.warn('Log lines were lost', { lines, reason })
  for (const warning of options.warnings) log.warn(warning)
  for (const [flag, value] of options.flags) log.v(1, 'FLAG', { flag, value })
  try {
    return await act(options, log)
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    log.error('The proxy ends', { error: describeError(error), ...error.fields })
    return 1
  }
}

const describePlatform = () => ({
  name: platform.name,
  modes: modes.map(({ name }) => name),
  mode: proxyDefaultMode,
})

/** Writes the configuration, cleans up, or runs the proxy. Resolves with the exit status. */
async function act(options: Options, log: RootLogger): Promise<number> {
  if (options.writeConfigTo !== '') {
    writeFileSync(options.writeConfigTo, formatConfig(options.config))
    log.info('Wrote the configuration', { file: options.writeConfigTo })
    return 0
  }
  if (options.cleanup) return cleanUp(options, log)
  await runUntilStopped(options, log)
  return 0
}

async function runUntilStopped(options: Options, log: RootLogger): Promise<void> {
  const { config, configFile } = options
  const stop = new AbortController()
  const closers = new Closers()
  let received: NodeJS.Signals | undefined
  const onSignal = (signal: NodeJS.Signals) => {
    received = signal
    stop.abort(new Error(`stopped by ${signal}`))
  }
  if (configFile !== '') {
    const watch = watchConfigFile(configFile, (reason) =>
      stop.abort(new ProxyError('config-changed', `${configFile} ${reason}: restart to use it`)),
    )
    closers.push(() => watch.close())
  }
  for (const signal of platform.stopSignals) {
    process.once(signal, onSignal)
    closers.push(() => process.off(signal, onSignal))
  }
  try {
    const { signal } = stop
    const backend = findMode(config.mode).makeBackend(makeSettings(config, options.sluice.traffic))
    // A mode that cannot work on this node fails here, before anything is changed.
    await backend.families()
    const others = new RunningProxies({
      mode: config.mode,
      log,
      clock: systemClock,
      metricsPorts: listMetricsPorts(config),
    })
    closers.push(() => others.close())
    others.start()
    const retire = () => retireOtherModes(config, log, others, signal)
    await runDaemon({ options, backend, log, signal, onServing: retire })
  } finally {
    await closers.closeAll()
  }
  if (received !== undefined) platform.endAfter(received)
}

/** kube-proxy's default, and the port that this proxy was given: both proxies often share a configuration. */
function listMetricsPorts({ metricsBindAddress }: Config): readonly number[] {
  const own = Number(/:(\d+)$/.exec(metricsBindAddress)?.[1] ?? defaultMetricsPort)
  return [...new Set([defaultMetricsPort, own])].filter((port) => port > 0 && port < 65_536)
}

const defaultMetricsPort = 10_249

async function cleanUp({ keptModes, config }: Options, log: Logger): Promise<number> {
  let failed = 0
  for (const { name: mode, leftovers } of modes) {
    if (keptModes.includes(mode)) continue
    try {
      await leftovers.cleanup(log, { cidrs: config.ipvs.excludeCIDRs })
    } catch (error) {
      failed++
      log.error('Cleanup failed', { mode, error: describeError(error) })
    }
  }
  if (failed > 0) log.error('Cleanup left something behind; see the errors above')
  return failed > 0 ? 1 : 0
}
