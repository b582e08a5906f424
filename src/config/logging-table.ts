// The logging block of the settings table. Its flags are the ones that count even when a configuration file is given.

import { type Setting, setting } from './setting.ts'

const alpha = 'Alpha: needs the feature gate LoggingAlphaOptions.'

export const loggingSettings: readonly Setting[] = [
  setting('level', {
    flag: 'v',
    shorthand: 'v',
    path: 'logging.verbosity',
    default: 0,
    beatsFile: true,
    help: 'How much is logged: lines of this level and below.',
  }),
  setting('vmodule', {
    flag: 'vmodule',
    path: 'logging.vmodule',
    default: [],
    omitted: true,
    beatsFile: true,
    help: 'Verbosity by component, text format only. Patterns given here come before those of a file.',
  }),
  setting('string', {
    flag: 'logging-format',
    path: 'logging.format',
    default: 'text',
    beatsFile: true,
    help: 'Form of log lines: text or json.',
  }),
  setting('flushFrequency', {
    flag: 'log-flush-frequency',
    path: 'logging.flushFrequency',
    default: 5000,
    beatsFile: true,
    help: 'How long log lines may be held back.',
  }),
  ...(['text', 'json'] as const).flatMap((format) => [
    setting('bool', {
      flag: `log-${format}-split-stream`,
      path: `logging.options.${format}.splitStream`,
      default: false,
      omitted: true,
      beatsFile: true,
      help: `In ${format} format, errors go to stderr and the rest to stdout. ${alpha}`,
    }),
    setting('quantity', {
      flag: `log-${format}-info-buffer-size`,
      path: `logging.options.${format}.infoBufferSize`,
      default: '0',
      beatsFile: true,
      help: `In ${format} format with split streams, bytes of stdout to hold back. ${alpha}`,
    }),
  ]),
]
