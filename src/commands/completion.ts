// `sluice completion`: prints completion scripts for three shells. The scripts ask `sluice __complete` for the candidates, which knows
// the command table and asks the running proxy for its services, so that they never lag behind the help.

import { ProxyError } from '../lib/errors.ts'
import type { Command } from './command.ts'

const shells = ['bash', 'zsh', 'fish'] as const

export const completionCommand: Command = {
  name: 'completion',
  usage: shells.join('|'),
  about: `Prints a script that completes the commands and flags of sluice and kube-proxy, and the names of services, for which it asks the
proxy that runs here.`,
  flags: [],
  examples: [
    ['source <(sluice completion bash)', 'for this shell; in ~/.bashrc or ~/.zshrc for every new one'],
    ['sluice completion bash > ~/.local/share/bash-completion/completions/sluice', 'for every new bash'],
    ['sluice completion fish > ~/.config/fish/completions/sluice.fish', 'for every new fish'],
  ],
  arguments: { least: 1, most: 1, offered: shells },
  async run({ args, terminal }) {
    const shell = args[0] ?? ''
    const script = { bash: bashScript, zsh: zshScript, fish: fishScript }[shell]
    if (script === undefined) {
      throw new ProxyError('usage', `no completion for "${shell}"; there is ${shells.join(', ')}`)
    }
    terminal.write(script)
    return 0
  },
}

/** bash cuts words at = and :, so the words are read from the line, and what bash has cut off is removed from the candidates. */
const bashScript = `# bash completion of sluice and kube-proxy
_sluice() {
  local program=sluice line="\${COMP_LINE:0:COMP_POINT}" cur="\${COMP_WORDS[COMP_CWORD]}" words lines last before
  [ "\${COMP_WORDS[0]##*/}" = sluice ] && program="\${COMP_WORDS[0]}"
  read -ra words <<< "$line"
  case "$line" in *[[:space:]]) words+=('') ;; esac
  last="\${words[\${#words[@]}-1]}"
  words=("\${words[@]:1}")
  [ "\${COMP_WORDS[0]##*/}" = kube-proxy ] && words=(proxy "\${words[@]}")
  case "$cur" in = | :) cur= ;; esac
  before="\${last%"$cur"}"
  mapfile -t lines < <("$program" __complete -- "\${words[@]}" 2>/dev/null)
  COMPREPLY=()
  [ \${#lines[@]} -eq 0 ] && return
  if [ "\${lines[\${#lines[@]}-1]}" = :0 ]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
  fi
  unset "lines[\${#lines[@]}-1]"
  COMPREPLY+=("\${lines[@]#"$before"}")
}
complete -F _sluice sluice kube-proxy
`

/** It works as a file in a folder of the fpath, and when it is read by `source`. */
const zshScript = `#compdef sluice kube-proxy
_sluice() {
  local program=sluice directive line
  local -a given lines values shown
  [[ \${words[1]:t} == sluice ]] && program=\${words[1]}
  given=("\${(@)words[2,CURRENT]}")
  [[ \${words[1]:t} == kube-proxy ]] && given=(proxy "\${(@)given}")
  lines=("\${(@f)$("$program" __complete --describe -- "\${(@)given}" 2>/dev/null)}")
  directive=\${lines[-1]}
  for line in "\${(@)lines[1,-2]}"; do
    values+=("\${line%%$'\\t'*}")
    shown+=("\${line/$'\\t'/  -- }")
  done
  [[ $directive == :0 ]] && _files
  (( $#values )) && compadd -l -d shown -a values
}
if [[ \${funcstack[1]} == _sluice ]]; then
  _sluice "$@"
else
  (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
  compdef _sluice sluice kube-proxy
fi
`

const fishScript = `# fish completion of sluice and kube-proxy
function __sluice_complete
    set -l words (commandline -opc)
    set -l program sluice
    string match -qr '(^|/)sluice$' -- $words[1]; and set program $words[1]
    set -l lines ($program __complete --describe -- $argv $words[2..-1] (commandline -ct) 2>/dev/null)
    test (count $lines) -gt 1; and string join \\n -- $lines[1..-2]
    test "$lines[-1]" = :0; and __fish_complete_path (commandline -ct)
end
complete -c sluice -f -a '(__sluice_complete)'
complete -c kube-proxy -f -a '(__sluice_complete proxy)'
`
