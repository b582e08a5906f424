// Defines what a command of `sluice` is, parses its flags and formats its help. The flags of `sluice proxy` are parsed in config/flags.

import { ProxyError } from '../lib/errors.ts'
import type { Terminal } from './terminal.ts'

export interface Flag {
  readonly name: string
  readonly short?: string
  /** Placeholder of the value in the help; absent for a flag without a value. */
  readonly value?: string
  readonly help: string
  /** All allowed values, for completion and for errors. */
  readonly choices?: readonly string[]
  /** The shell completes the value with file names. */
  readonly file?: boolean
  /** The flag may be given several times; `flagValues` returns all its values. */
  readonly repeats?: boolean
}

/** Flag values by name; '' for a flag without a value. */
export type Flags = ReadonlyMap<string, string>

/** No argument of a process contains it. */
const valueSeparator = '\0'

/** Returns all values of a flag that may be given several times. */
export const flagValues = (flags: Flags, name: string): readonly string[] =>
  flags.get(name)?.split(valueSeparator) ?? []

export interface Invocation {
  readonly flags: Flags
  readonly args: readonly string[]
  readonly terminal: Terminal
}

export interface Command {
  readonly name: string
  /** What follows the name: `ADDRESS:PORT[/PROTOCOL] [flags]`. */
  readonly usage: string
  readonly about: string
  readonly flags: readonly Flag[]
  readonly examples: readonly (readonly [line: string, meaning: string])[]
  readonly arguments: ArgumentRule
  /** The command looks at the kernel of Linux and refuses other systems. */
  readonly linuxOnly?: boolean
  /** Resolves with the exit status. */
  readonly run: (invocation: Invocation) => Promise<number>
}

/** A row of the command table. A command is loaded only when it is needed: a person waits for `--help` and for the next word. */
export interface ListedCommand {
  readonly name: string
  readonly summary: string
  /** The help and completion leave this command out. */
  readonly hidden?: boolean
  readonly load: () => Promise<Command>
}

export interface ArgumentRule {
  readonly least: number
  readonly most: number
  /** What completion offers: these words, or the services of the running proxy. */
  readonly offered?: readonly string[] | 'services'
}

export const noArguments: ArgumentRule = { least: 0, most: 0 }

export const outputFlag: Flag = {
  name: 'output',
  short: 'o',
  value: 'FORMAT',
  help: 'table for people, json or yaml for programs (default table)',
  choices: ['table', 'json', 'yaml'],
}

export const namespaceFlag = (help: string): Flag => ({ name: 'namespace', short: 'n', value: 'NAMESPACE', help })

const helpFlag: Flag = { name: 'help', short: 'h', help: 'show this text' }

/** Returns the command's own flags and --help. */
export const allFlags = (command: Command): readonly Flag[] => [...command.flags, helpFlag]

export interface ParsedArguments {
  readonly flags: Flags
  readonly args: readonly string[]
  readonly help: boolean
}

/** Throws a ProxyError 'usage' with one line that names the flag, the given value and the allowed values. */
export function parseArguments(command: Command, argv: readonly string[]): ParsedArguments {
  const flags = new Map<string, string>()
  const args: string[] = []
  const rest = [...argv]
  for (let word = rest.shift(); word !== undefined; word = rest.shift()) {
    if (word === '--') {
      args.push(...rest.splice(0))
    } else if (word === '-' || !word.startsWith('-') || /^-\d/.test(word)) {
      args.push(word)
    } else {
      const [name, value] = parseFlag(command, word, rest)
      const isRepeated = flags.has(name) && command.flags.some((flag) => flag.name === name && flag.repeats === true)
      flags.set(name, isRepeated ? `${flags.get(name)}${valueSeparator}${value}` : value)
    }
  }
  const help = flags.has('help')
  const { least, most } = command.arguments
  if (!help && args.length < least) throw usageError(command, 'an argument is missing')
  if (!help && args.length > most) throw usageError(command, `unexpected argument "${args[most]}"`)
  return { flags, args, help }
}

/** Returns name and value of `--flag`, `--flag=value`, `-f` or `--flag value`; in the last form the value is shifted from `rest`. */
function parseFlag(command: Command, word: string, rest: string[]): readonly [name: string, value: string] {
  const isLong = word.startsWith('--')
  const equals = word.indexOf('=')
  const head = equals < 0 ? word : word.slice(0, equals)
  const name = head.slice(isLong ? 2 : 1)
  const flag = allFlags(command).find((one) => (isLong ? one.name : one.short) === name)
  if (flag === undefined) throw usageError(command, `unknown flag ${head}`)
  if (flag.value === undefined) {
    if (equals >= 0) throw usageError(command, `--${flag.name} takes no value`)
    return [flag.name, '']
  }
  const value = equals < 0 ? rest.shift() : word.slice(equals + 1)
  if (value === undefined) throw usageError(command, `--${flag.name} needs a value: ${flag.value}`)
  if (flag.choices !== undefined && !flag.choices.includes(value)) {
    throw usageError(command, `--${flag.name}: given "${value}", allowed: ${flag.choices.join(', ')}`)
  }
  return [flag.name, value]
}

const usageError = ({ name }: Command, problem: string): ProxyError =>
  new ProxyError('usage', `${problem} (see sluice ${name} --help)`)

export function formatHelp(command: Command): string {
  const flags = allFlags(command).map((flag) => ({ head: flagHead(flag), help: flag.help }))
  const width = Math.max(...flags.map(({ head }) => head.length)) + 2
  return [
    command.about,
    '',
    'Usage:',
    `  sluice ${command.name} ${command.usage}`.trimEnd(),
    '',
    'Flags:',
    ...flags.map(({ head, help }) => `  ${head.padEnd(width)}${help}`),
    '',
    'Examples:',
    ...command.examples.flatMap(([line, meaning]) => [`  # ${meaning}`, `  ${line}`]),
    '',
  ].join('\n')
}

function flagHead({ name, short, value }: Flag): string {
  const names = short === undefined ? `    --${name}` : `-${short}, --${name}`
  return value === undefined ? names : `${names} ${value}`
}
