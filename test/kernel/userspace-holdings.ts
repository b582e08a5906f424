// What the kernel tests of userspace mode share: what iptables-save and the node's sockets say is left of services.

import type { Start } from '../lab/driver.ts'

/** Rules in our chains that name a service, and sockets that somebody still listens on. */
export async function holdings({ node, families }: Start): Promise<readonly string[]> {
  const left: string[] = []
  for (const family of families) {
    const program = family === 4 ? 'iptables-nft-save' : 'ip6tables-nft-save'
    const { code, stdout, stderr } = await node.exec(program, [])
    if (code !== 0) left.push(`${program}: ${stderr}`)
    if (!stdout.includes(':KUBE-PORTALS-CONTAINER ')) left.push(`${program} does not even show our chains`)
    left.push(
      ...stdout.split('\n').filter((line) => /^-A KUBE-(?:PORTALS|NODEPORT)-.*(?:DNAT|REDIRECT|REJECT)/.test(line)),
    )
  }
  const { stdout } = await node.exec('ss', ['-Hlntup'])
  // The lab's own sockets are this process's.
  const others = stdout.split('\n').filter((line) => line.includes('users:') && !line.includes(`pid=${process.pid},`))
  left.push(...others.map((line) => `the socket ${line}`))
  return left
}
