// `sluice __complete`: completes the last of the given words, for the scripts of `sluice completion` and, by the program
// kubectl_complete-sluice, for kubectl. Prints one candidate per line, and a last line that says what the shell does with them.

import { flagSettings } from '../config/flags/flag-table.ts'
import { AdminClient, findSocket } from '../http/admin-client.ts'
import { allFlags, type Command, type Flag, type ListedCommand, noArguments } from './command.ts'

/** Numbers of kubectl's library for commands: the shell adds no file names, or does. */
const directives = { noFiles: 4, files: 0 } as const
/** A person waits for the candidates. */
const answerMs = 2_000

export const completeCommand = (commands: readonly ListedCommand[]): Command => ({
  name: '__complete',
  usage: '[--describe] -- WORD...',
  about: 'Prints the candidates for the last word, for completion scripts and kubectl_complete-sluice.',
  flags: [{ name: 'describe', help: 'add a tab and a description to candidates that have one' }],
  examples: [['sluice __complete -- status --o', 'the flags of status that begin with --o']],
  arguments: { least: 0, most: 1000 },
  async run({ args, flags, terminal }) {
    const { candidates, isFile } = await completeWords([...commands, proxyCommand], args)
    const write = ({ word, meaning }: CompletedWord) =>
      flags.has('describe') && meaning !== '' ? `${word}\t${meaning}` : word
    const lines = [...candidates.map(write), `:${isFile ? directives.files : directives.noFiles}`]
    terminal.write(lines.map((line) => `${line}\n`).join(''))
    return 0
  },
})

/** `sluice proxy` is not in the command table: its flags are kube-proxy's. */
const proxyCommand: ListedCommand = {
  name: 'proxy',
  summary: 'run the proxy',
  load: async () => ({ ...proxyFlags, name: 'proxy' }),
}

const proxyFlags: Omit<Command, 'name'> = {
  usage: '[flags]',
  about: '',
  flags: flagSettings.map(({ flag, kind, help, ...row }) => ({
    name: flag,
    help,
    ...(kind === 'bool' ? {} : { value: 'VALUE', file: /config|file/.test(flag) }),
    ...('words' in row && row.words !== undefined ? { choices: row.words } : {}),
  })),
  examples: [],
  arguments: noArguments,
  run: () => Promise.resolve(0),
}

export interface CompletedWord {
  readonly word: string
  readonly meaning: string
}

export interface Completion {
  readonly candidates: readonly CompletedWord[]
  /** True if the shell offers file names. */
  readonly isFile: boolean
}

const plain = (words: readonly string[]): readonly CompletedWord[] => words.map((word) => ({ word, meaning: '' }))

/** `words` are those after `sluice`; the last is being typed and may be ''. */
export async function completeWords(commands: readonly ListedCommand[], words: readonly string[]): Promise<Completion> {
  const word = words.at(-1) ?? ''
  const names = commands.map(({ name, summary }) => ({ word: name, meaning: summary }))
  if (words.length <= 1) return offer([...names, ...plain(['help', 'version'])], word)
  if (words[0] === 'help') return offer(words.length === 2 ? names : [], word)
  const command = await commands.find(({ name }) => name === words[0])?.load()
  if (command === undefined) return offer([], word)
  const [, name = '', value = ''] = /^(--[^=]+)=(.*)$/s.exec(word) ?? []
  if (name !== '') {
    const { candidates, isFile } = completeValue(findFlag(command, name), value)
    return { isFile, candidates: candidates.map((one) => ({ ...one, word: `${name}=${one.word}` })) }
  }
  const before = findFlag(command, words.at(-2) ?? '')
  if (before?.value !== undefined) return completeValue(before, word)
  if (!word.startsWith('-')) return offer(await listArguments(command, words), word)
  const flags = allFlags(command).map((flag) => ({ word: `--${flag.name}`, meaning: flag.help }))
  return offer(flags, word)
}

async function listArguments(
  { arguments: rule }: Command,
  words: readonly string[],
): Promise<readonly CompletedWord[]> {
  if (rule.offered === 'services') return plain(await listServices(words))
  return plain(rule.offered ?? [])
}

/** The services of the proxy that the words name or that runs here; none if there is no answer. */
async function listServices(words: readonly string[]): Promise<readonly string[]> {
  if (words.some((word) => /^--(kubeconfig|manifests|node|simulate)\b/.test(word))) return []
  const given = words[words.indexOf('--socket') + 1] as string
  const read = async () => {
    const socket = await findSocket(words.includes('--socket') ? given : '', process.env)
    const services = await new AdminClient(socket).services('', false)
    return [...new Set(services.map(({ service }) => service))]
  }
  const late = new Promise<readonly string[]>((resolve) => setTimeout(() => resolve([]), answerMs).unref())
  return Promise.race([read().catch(() => []), late])
}

const findFlag = (command: Command, word: string): Flag | undefined =>
  allFlags(command).find(({ name, short }) => word === `--${name}` || (short !== undefined && word === `-${short}`))

const completeValue = (flag: Flag | undefined, value: string): Completion => ({
  ...offer(plain(flag?.choices ?? []), value),
  isFile: flag?.file === true,
})

const offer = (all: readonly CompletedWord[], typed: string): Completion => ({
  candidates: all.filter(({ word }) => word.startsWith(typed)),
  isFile: false,
})
