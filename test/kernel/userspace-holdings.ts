// Lists what is left of services in userspace mode, as iptables-save and ss print it.

import type { StartOptions } from '../lab/driver.ts'

/** Lists rules in our chains that name a service, and listening sockets of other processes. */
export async function holdings({ node, families }: StartOptions): Promise<readonly string[]> {
  const left: string[] = []
  for (const family of families) {
    const program = family === 4 ? 'iptables-nft-save' : 'ip6tables-nft-save'
    const { code, stdout, stderr } = await node.exec(program, [])
    if (code !== 0) left.push(`${program}: ${stderr}`)
    if (!stdout.includes(':KUBE-PORTALS-CONTAINER ')) left.push(`${program} does not print our chains`)
    left.push(
      ...stdout.split('\n').filter((line) => /^-A KUBE-(?:PORTALS|NODEPORT)-.*(?:DNAT|REDIRECT|REJECT)/.test(line)),
    )
  }
  const { stdout } = await node.exec('ss', ['-Hlntup'])
  // The sockets of this process are the lab's own.
  const others = stdout.split('\n').filter((line) => line.includes('users:') && !line.includes(`pid=${process.pid},`))
  left.push(...others.map((line) => `the socket ${line}`))
  return left
}
