// Brings rules to one form, whether they are as we wrote them or as iptables-save prints them. Pure.

/** Options that say nothing about which packets a rule takes, or that the programs add by themselves. */
const ignored = new Set(['-m', '--comment', '--mask', '--rsource', '--reject-with', '--random-fully', '--nfacct-name'])

/** Returns the options of a rule in alphabetical order, with its values as iptables-save prints them; '' if the line is no rule. */
export function formOfRule(line: string): string {
  if (!line.startsWith('-A ')) return ''
  const words = line.match(/"(?:[^"\\]|\\.)*"|\S+/g) ?? []
  const options: string[][] = []
  let isNegated = false
  for (const word of words.slice(2)) {
    if (word === '!') isNegated = true
    else if (word.startsWith('-')) {
      options.push([isNegated ? `! ${word}` : word])
      isNegated = false
    } else options.at(-1)?.push(word)
  }
  return options
    .filter(([name = '']) => !ignored.has(name))
    .map(([name = '', ...values]) => formOfOption(name, values.join(' ')))
    .sort()
    .join(' ')
}

function formOfOption(name: string, value: string): string {
  switch (name.replace('! ', '')) {
    case '-s':
    case '-d':
      return `${name} ${value.replace(/\/(32|128)$/, '')}`
    case '--ctstate':
      return `${name} ${value.split(',').sort().join(',')}`
    case '--probability':
      // The kernel keeps 31 bits of it.
      return `${name} ${Number(value).toFixed(6)}`
    case '--or-mark':
      return `--set-xmark ${shortHex(value)}/${shortHex(value)}`
    case '--xor-mark':
      return `--set-xmark ${shortHex(value)}/0x0`
    default:
      return value === '' ? name : `${name} ${value.replace(/0x[0-9a-f]+/g, shortHex)}`
  }
}

const shortHex = (text: string): string => text.replace(/^0x0*(?=[0-9a-f])/, '0x')
