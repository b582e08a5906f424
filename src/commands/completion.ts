// `sluice completion`: scripts for three shells, made from the command table, so that they never know less than the help does.

import { ProxyError } from '../lib/errors.ts'
import { type Command, flagsOf } from './command.ts'

const shells = ['bash', 'zsh', 'fish'] as const

export const completionCommand = (commands: () => readonly Command[]): Command => ({
  name: 'completion',
  summary: 'a completion script for bash, zsh or fish',
  usage: shells.join('|'),
  about: 'Prints a script that completes the commands and flags of sluice.',
  flags: [],
  examples: [
    ['source <(sluice completion bash)', 'for this shell'],
    ['sluice completion fish > ~/.config/fish/completions/sluice.fish', 'for good'],
  ],
  takes: [1, 1],
  async run({ args, terminal }) {
    const shell = args[0] as string
    const make = { bash, zsh, fish }[shell]
    if (make === undefined) throw new ProxyError('usage', `no completion for "${shell}"; there is ${shells.join(', ')}`)
    terminal.write(make(commands().filter(({ hidden }) => hidden !== true)))
    return 0
  },
})

const words = (command: Command): string =>
  flagsOf(command)
    .map(({ name }) => `--${name}`)
    .join(' ')

function bash(commands: readonly Command[]): string {
  const cases = commands.map((command) => {
    const values = flagsOf(command).flatMap(({ name, short, value, choices, file }) => {
      if (value === undefined) return []
      const names = short === undefined ? `--${name}` : `--${name}|-${short}`
      if (choices !== undefined)
        return [`        ${names}) COMPREPLY=($(compgen -W '${choices.join(' ')}' -- "$word")); return ;;`]
      return file
        ? [`        ${names}) COMPREPLY=($(compgen -f -- "$word")); return ;;`]
        : [`        ${names}) return ;;`]
    })
    const offered = command.name === 'completion' ? shells.join(' ') : words(command)
    return [
      `    ${command.name})`,
      '      case "$before" in',
      ...values,
      '      esac',
      `      COMPREPLY=($(compgen -W '${offered}' -- "$word")) ;;`,
    ].join('\n')
  })
  return `# bash completion of sluice
_sluice() {
  local word="\${COMP_WORDS[COMP_CWORD]}" before="\${COMP_WORDS[COMP_CWORD-1]}"
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '${commands.map(({ name }) => name).join(' ')} help version' -- "$word"))
    return
  fi
  case "\${COMP_WORDS[1]}" in
${cases.join('\n')}
  esac
}
complete -o default -F _sluice sluice
`
}

/** zsh understands bash's scripts, once it is asked to. */
function zsh(commands: readonly Command[]): string {
  return `#compdef sluice
autoload -U +X bashcompinit && bashcompinit
${bash(commands)}`
}

function fish(commands: readonly Command[]): string {
  const quote = (text: string) => `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`
  const lines = commands.flatMap((command) => [
    `complete -c sluice -n __fish_use_subcommand -f -a ${command.name} -d ${quote(command.summary)}`,
    ...flagsOf(command).map(({ name, short, value, help, choices, file }) =>
      [
        `complete -c sluice -n '__fish_seen_subcommand_from ${command.name}' -l ${name}`,
        short === undefined ? '' : `-s ${short}`,
        value === undefined ? '-f' : file ? '-r' : choices === undefined ? '-x' : `-x -a ${quote(choices.join(' '))}`,
        `-d ${quote(help)}`,
      ]
        .filter((part) => part !== '')
        .join(' '),
    ),
  ])
  return `# fish completion of sluice\n${lines.join('\n')}\ncomplete -c sluice -n '__fish_seen_subcommand_from completion' -f -a '${shells.join(' ')}'\n`
}
