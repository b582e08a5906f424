// What the kernel holds for services, in the words of the usual tools: ipvsadm, ipset and ip.

import type { Start } from '../lab/driver.ts'
import type { Namespace } from '../lab/namespace.ts'

export async function ask(node: Namespace, program: string, ...args: string[]): Promise<string> {
  const { code, stdout, stderr } = await node.exec(program, args)
  if (code !== 0) throw new Error(`${program} ${args.join(' ')}: ${stderr}`)
  return stdout
}

/** Virtual servers and destinations, members of sets, service addresses. */
export async function holdings({ node }: Pick<Start, 'node'>): Promise<readonly string[]> {
  const servers = (await ask(node, 'ipvsadm', '-Ln')).split('\n').slice(3)
  const sets = (await ask(node, 'ipset', 'save')).split('\n').filter((line) => /^add (KUBE|SLUICE)-/.test(line))
  const addresses = (await node.exec('ip', ['-br', 'addr', 'show', 'kube-ipvs0'])).stdout.trim().split(/\s+/).slice(2)
  return [...servers, ...sets, ...addresses.filter((text) => !text.startsWith('fe80:'))].filter((line) => line !== '')
}
