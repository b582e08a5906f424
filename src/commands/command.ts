// What a command of `sluice` is: its words, its help, and how its flags are read. The proxy itself has kube-proxy's own parser.

import { ProxyError } from '../lib/errors.ts'
import type { Terminal } from './terminal.ts'

export interface Flag {
  readonly name: string
  readonly short?: string
  /** What stands for the value in the help; a flag without is either there or not. */
  readonly value?: string
  readonly help: string
  /** All values there are; for completion and for errors. */
  readonly choices?: readonly string[]
  /** Completed with file names. */
  readonly file?: boolean
}

export interface Invocation {
  /** '' for a flag that is given and takes no value. */
  readonly flags: ReadonlyMap<string, string>
  readonly args: readonly string[]
  readonly terminal: Terminal
}

export interface Command {
  readonly name: string
  readonly summary: string
  /** After the name: `ADDRESS:PORT[/PROTOCOL] [flags]`. */
  readonly usage: string
  readonly about: string
  readonly flags: readonly Flag[]
  readonly examples: readonly (readonly [line: string, what: string])[]
  /** Fewest and most arguments. */
  readonly takes: readonly [number, number]
  /** Left out of the help and of completion. */
  readonly hidden?: boolean
  /** Resolves with the exit status. */
  readonly run: (invocation: Invocation) => Promise<number>
}

export const outputFlag: Flag = {
  name: 'output',
  short: 'o',
  value: 'FORMAT',
  help: 'table for people, json or yaml for programs (default table)',
  choices: ['table', 'json', 'yaml'],
}

const helpFlag: Flag = { name: 'help', short: 'h', help: 'this text' }

export const flagsOf = (command: Command): readonly Flag[] => [...command.flags, helpFlag]

/** Throws a ProxyError 'usage' with one line that names the flag, what was given and what is allowed. */
export function parse(command: Command, argv: readonly string[]): Omit<Invocation, 'terminal'> & { help: boolean } {
  const flags = new Map<string, string>()
  const args: string[] = []
  const queue = [...argv]
  for (let word = queue.shift(); word !== undefined; word = queue.shift()) {
    if (word === '--') {
      args.push(...queue)
      break
    }
    if (word === '-' || !word.startsWith('-')) args.push(word)
    else take(command, word, queue, flags)
  }
  const help = flags.has('help')
  const [least, most] = command.takes
  if (!help && args.length < least) throw usage(command, 'an argument is missing')
  if (!help && args.length > most) throw usage(command, `unexpected argument "${args[most]}"`)
  return { flags, args, help }
}

function take(command: Command, word: string, queue: string[], flags: Map<string, string>): void {
  const long = word.startsWith('--')
  const equals = word.indexOf('=')
  const name = word.slice(long ? 2 : 1, equals < 0 ? undefined : equals)
  const flag = flagsOf(command).find((each) => (long ? each.name : each.short) === name)
  if (flag === undefined) throw usage(command, `unknown flag ${word.slice(0, equals < 0 ? undefined : equals)}`)
  if (flag.value === undefined) {
    if (equals >= 0) throw usage(command, `--${flag.name} takes no value`)
    flags.set(flag.name, '')
    return
  }
  const value = equals < 0 ? queue.shift() : word.slice(equals + 1)
  if (value === undefined) throw usage(command, `--${flag.name} needs a value: ${flag.value}`)
  if (flag.choices !== undefined && !flag.choices.includes(value)) {
    throw usage(command, `--${flag.name}: given "${value}", allowed: ${flag.choices.join(', ')}`)
  }
  flags.set(flag.name, value)
}

const usage = ({ name }: Command, what: string): ProxyError =>
  new ProxyError('usage', `${what} (see sluice ${name} --help)`)

export function helpOf(command: Command): string {
  const heads = flagsOf(command).map(({ name, short, value }) => {
    const both = short === undefined ? `    --${name}` : `-${short}, --${name}`
    return value === undefined ? both : `${both} ${value}`
  })
  const width = Math.max(...heads.map((head) => head.length)) + 2
  return [
    command.about,
    '',
    'Usage:',
    `  sluice ${command.name} ${command.usage}`.trimEnd(),
    '',
    'Flags:',
    ...flagsOf(command).map(({ help }, i) => `  ${(heads[i] as string).padEnd(width)}${help}`),
    '',
    'Examples:',
    ...command.examples.flatMap(([line, what]) => [`  # ${what}`, `  ${line}`]),
    '',
  ].join('\n')
}
