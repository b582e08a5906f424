// `sluice __complete`: completes the last of the given words. kubectl asks its plugins so, by the program kubectl_complete-sluice, and
// expects one candidate per line and a last line that says what the shell does with them.

import { allFlags, type Command, type Flag } from './command.ts'

/** Numbers of kubectl's library for commands: the shell adds no file names, or does. */
const directives = { noFiles: 4, files: 0 } as const

export const completeCommand = (commands: () => readonly Command[]): Command => ({
  name: '__complete',
  summary: 'complete the last word for kubectl',
  usage: 'WORD...',
  about: 'Prints the candidates for the last word, for kubectl_complete-sluice.',
  flags: [],
  examples: [['sluice __complete -- status --o', 'the flags of status that begin with --o']],
  arguments: { least: 0, most: 1000 },
  hidden: true,
  async run({ args, terminal }) {
    const visible = commands().filter(({ hidden }) => hidden !== true)
    const { candidates, isFile } = completeWords(visible, args)
    const lines = [...candidates, `:${isFile ? directives.files : directives.noFiles}`]
    terminal.write(lines.map((line) => `${line}\n`).join(''))
    return 0
  },
})

export interface Completion {
  readonly candidates: readonly string[]
  /** True if the shell offers file names. */
  readonly isFile: boolean
}

/** `words` are those after `sluice`; the last is being typed and may be ''. */
export function completeWords(commands: readonly Command[], words: readonly string[]): Completion {
  const word = words.at(-1) ?? ''
  if (words.length <= 1) return offer([...commands.map(({ name }) => name), 'help', 'version'], word)
  const command = commands.find(({ name }) => name === words[0])
  if (command === undefined) return offer([], word)
  const [, name = '', value = ''] = /^(--[^=]+)=(.*)$/s.exec(word) ?? []
  if (name !== '') {
    const completion = completeValue(findFlag(command, name), value)
    return { ...completion, candidates: completion.candidates.map((one) => `${name}=${one}`) }
  }
  const before = findFlag(command, words.at(-2) ?? '')
  if (before?.value !== undefined) return completeValue(before, word)
  return word.startsWith('-')
    ? offer(
        allFlags(command).map((flag) => `--${flag.name}`),
        word,
      )
    : offer([], word)
}

const findFlag = (command: Command, word: string): Flag | undefined =>
  allFlags(command).find(({ name, short }) => word === `--${name}` || (short !== undefined && word === `-${short}`))

const completeValue = (flag: Flag | undefined, value: string): Completion => ({
  ...offer(flag?.choices ?? [], value),
  isFile: flag?.file === true,
})

const offer = (all: readonly string[], word: string): Completion => ({
  candidates: all.filter((one) => one.startsWith(word)),
  isFile: false,
})
