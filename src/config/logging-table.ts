// The logging block of the settings table. Its flags count even when a configuration file is given. Pure.

import { declareField } from './setting.ts'

export const logFormats = ['text', 'json'] as const

const alpha = 'Alpha: needs the feature gate LoggingAlphaOptions.'

export const loggingSettings = [
  declareField('level', {
    flag: 'v',
    shorthand: 'v',
    path: 'logging.verbosity',
    default: 0,
    beatsFile: true,
    help: 'Verbosity of the log: lines of this level and below are written.',
  }),
  declareField('vmodule', {
    flag: 'vmodule',
    path: 'logging.vmodule',
    default: [],
    omitted: true,
    beatsFile: true,
    help: 'Verbosity by component, in text format only. These patterns come before those of a file.',
  }),
  declareField('string', {
    flag: 'logging-format',
    path: 'logging.format',
    words: logFormats,
    default: 'text',
    beatsFile: true,
    help: 'Format of log lines: text or json.',
  }),
  declareField('flushFrequency', {
    flag: 'log-flush-frequency',
    path: 'logging.flushFrequency',
    default: 5000,
    beatsFile: true,
    help: 'How long log lines may stay in a buffer.',
  }),
  ...logFormats.flatMap((format) => [
    declareField('bool', {
      flag: `log-${format}-split-stream`,
      path: `logging.options.${format}.splitStream`,
      default: false,
      omitted: true,
      beatsFile: true,
      help: `In ${format} format, errors go to stderr and the rest to stdout. ${alpha}`,
    }),
    declareField('quantity', {
      flag: `log-${format}-info-buffer-size`,
      path: `logging.options.${format}.infoBufferSize`,
      default: '0',
      beatsFile: true,
      help: `In ${format} format with split streams, size of the buffer for stdout. ${alpha}`,
    }),
  ]),
]
