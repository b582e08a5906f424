// Lists what the kernel holds for services, as ipvsadm, ipset and ip print it.

import type { StartOptions } from '../lab/driver.ts'
import type { Namespace } from '../lab/namespace.ts'

export async function ask(node: Namespace, program: string, ...args: string[]): Promise<string> {
  const { code, stdout, stderr } = await node.exec(program, args)
  if (code !== 0) throw new Error(`${program} ${args.join(' ')}: ${stderr}`)
  return stdout
}

/** Lists virtual servers and destinations, members of sets, and service addresses. */
export async function holdings({ node }: Pick<StartOptions, 'node'>): Promise<readonly string[]> {
  const servers = await ask(node, 'ipvsadm', '-Sn')
  const sets = await ask(node, 'ipset', 'save')
  // The command fails if the device does not exist.
  const { stdout: addresses } = await node.exec('ip', ['-br', 'addr', 'show', 'kube-ipvs0'])
  return `${servers}\n${sets}\n${addresses}`.split('\n').flatMap((line) => {
    if (line.startsWith('-')) return [line]
    if (/^add (KUBE|SLUICE)-/.test(line)) return [line]
    return line.startsWith('kube-ipvs0 ') ? line.trim().split(/\s+/).slice(2) : []
  })
}
