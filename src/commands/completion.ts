// `sluice completion`: generates completion scripts for three shells from the command table, so that they offer what the help lists.

import { ProxyError } from '../lib/errors.ts'
import { allFlags, type Command, type Flag } from './command.ts'

const shells = ['bash', 'zsh', 'fish'] as const

export const completionCommand = (commands: () => readonly Command[]): Command => ({
  name: 'completion',
  summary: 'print a completion script for bash, zsh or fish',
  usage: shells.join('|'),
  about: 'Prints a script that completes the commands and flags of sluice.',
  flags: [],
  examples: [
    ['source <(sluice completion bash)', 'for this shell'],
    ['sluice completion fish > ~/.config/fish/completions/sluice.fish', 'for every new shell'],
  ],
  arguments: { least: 1, most: 1 },
  async run({ args, terminal }) {
    const shell = args[0] ?? ''
    const write = { bash: bashScript, zsh: zshScript, fish: fishScript }[shell]
    if (write === undefined) {
      throw new ProxyError('usage', `no completion for "${shell}"; there is ${shells.join(', ')}`)
    }
    terminal.write(write(commands().filter(({ hidden }) => hidden !== true)))
    return 0
  },
})

function bashScript(commands: readonly Command[]): string {
  const cases = commands.map((command) => {
    const flags = allFlags(command)
    const offered = command.name === 'completion' ? shells.join(' ') : flags.map(({ name }) => `--${name}`).join(' ')
    return [
      `    ${command.name})`,
      '      case "$before" in',
      ...flags.filter(({ value }) => value !== undefined).map(bashValueCase),
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

/** Completes the value of one flag. */
function bashValueCase({ name, short, choices, file }: Flag): string {
  const names = short === undefined ? `--${name}` : `--${name}|-${short}`
  if (choices !== undefined) {
    return `        ${names}) COMPREPLY=($(compgen -W '${choices.join(' ')}' -- "$word")); return ;;`
  }
  return file ? `        ${names}) COMPREPLY=($(compgen -f -- "$word")); return ;;` : `        ${names}) return ;;`
}

/** zsh runs the bash script after bashcompinit. */
function zshScript(commands: readonly Command[]): string {
  return `#compdef sluice
autoload -U +X bashcompinit && bashcompinit
${bashScript(commands)}`
}

function fishScript(commands: readonly Command[]): string {
  const lines = commands.flatMap((command) => [
    `complete -c sluice -n __fish_use_subcommand -f -a ${command.name} -d ${fishQuote(command.summary)}`,
    ...allFlags(command).map((flag) =>
      [
        `complete -c sluice -n '__fish_seen_subcommand_from ${command.name}' -l ${flag.name}`,
        flag.short === undefined ? '' : `-s ${flag.short}`,
        fishValue(flag),
        `-d ${fishQuote(flag.help)}`,
      ]
        .filter((part) => part !== '')
        .join(' '),
    ),
  ])
  return `# fish completion of sluice\n${lines.join('\n')}\ncomplete -c sluice -n '__fish_seen_subcommand_from completion' -f -a '${shells.join(' ')}'\n`
}

/** -f: no value; -r: a file name; -x: a value that is not a file name. */
function fishValue({ value, file, choices }: Flag): string {
  if (value === undefined) return '-f'
  if (file) return '-r'
  return choices === undefined ? '-x' : `-x -a ${fishQuote(choices.join(' '))}`
}

const fishQuote = (text: string): string => `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`
