// Plays scenarios of the corpus with the real bundle under Wine. The process stays while scenarios have the same settings.

import type { Change, Driver, StartOptions } from '../lab/driver.ts'
import type { Lab } from '../lab/lab.ts'
import type { Item } from '../lab/watched-api.ts'
import type { Manifest, NodeSettings } from '../scenarios/format.ts'
import { toIpv6 } from '../scenarios/twins.ts'
import { makeNode, WindowsNode, type WindowsProcess } from './windows-node.ts'

export class WindowsDriver implements Driver {
  /** Relays move UDP clients whose endpoint is gone, which is what scenarios need connection tracking for. */
  readonly provides = ['conntrack']
  readonly listens = true
  #node: WindowsNode | undefined
  #proxy: WindowsProcess | undefined
  #flags = ''
  #cidrs: readonly Item[] = []

  /** Called with the lab of the lane before the first scenario. */
  async open(lab: Lab): Promise<void> {
    this.#node = await WindowsNode.create(lab)
  }

  get #opened(): WindowsNode {
    if (this.#node === undefined) throw new Error('the driver was not opened')
    return this.#node
  }

  async start({ settings, initial = [] }: StartOptions): Promise<void> {
    const flags = listFlags(settings)
    if (flags.join(' ') !== this.#flags) await this.#end()
    this.#flags = flags.join(' ')
    this.#putNode(settings)
    this.#opened.api.put(...initial.map(toItem))
    this.#proxy ??= this.#opened.startProxy(...flags)
    await this.settle()
  }

  async apply({ drop, put }: Change): Promise<void> {
    this.#opened.api.drop(...drop.map(toItem))
    this.#opened.api.put(...put.map(toItem))
  }

  async reconfigure(settings: NodeSettings): Promise<void> {
    this.#putNode(settings)
    await this.settle()
  }

  settle(): Promise<void> {
    return this.#opened.settle()
  }

  /** Addresses on the interface, and sockets that Wine has beyond those that are always there. */
  async holdings(): Promise<readonly string[]> {
    const addresses = await this.#opened.serviceAddresses()
    const { stdout } = await this.#opened.lab.node.exec('ss', ['-Hlntup'])
    const sockets = stdout.split('\n').filter((line) => line.includes('"wineserver') && !alwaysOpen.test(line))
    return [...addresses.map((ip) => `the address ${ip}`), ...sockets.map((line) => `the socket ${line}`)]
  }

  /** The process stays for the next scenario: all objects are gone by now. */
  async stop(): Promise<void> {}

  async close(): Promise<void> {
    await this.#node?.close()
  }

  async #end(): Promise<void> {
    this.#proxy?.pressCtrlC()
    await this.#proxy?.ended()
    this.#proxy = undefined
  }

  #putNode({ zone, serviceCIDRs }: NodeSettings): void {
    const { api } = this.#opened
    api.put(makeNode(zone))
    const cidrs = serviceCIDRs.map(makeServiceCidr)
    const kept = new Set(cidrs.map(({ metadata }) => metadata.name))
    api.drop(...this.#cidrs.filter(({ metadata }) => !kept.has(metadata.name)))
    api.put(...cidrs)
    this.#cidrs = cidrs
  }
}

/** The health and metrics servers, and the marker. */
const alwaysOpen = /:(?:10249|10256|3250[12])\s|198\.18\.0\.1:1\s|\[fd00:198:18::1\]:1\s/

function listFlags({ detector, nodePortAddresses, externalIPs }: NodeSettings): readonly string[] {
  const flags = [`--feature-gates=AllowServiceExternalIPs=${externalIPs}`]
  if (detector !== 'none' && 'cidrs' in detector) flags.push(`--cluster-cidr=${inBothFamilies(detector.cidrs)}`)
  if (nodePortAddresses.length > 0) flags.push(`--nodeport-addresses=${nodePortAddresses.join(',')}`)
  return flags
}

/** The process serves both families, so a scenario and its twin have the same flags. */
function inBothFamilies(cidrs: readonly string[]): string {
  const usual = '10.0.0.0/8'
  const both = [usual, toIpv6(usual) as string]
  return (cidrs.every((cidr) => both.includes(cidr)) ? both : cidrs).join(',')
}

const toItem = (manifest: Manifest): Item => manifest as unknown as Item

const makeServiceCidr = (cidr: string): Item => ({
  apiVersion: 'networking.k8s.io/v1',
  kind: 'ServiceCIDR',
  metadata: { name: cidr.replaceAll(/[^\da-f]/g, '-') },
  ...{ spec: { cidrs: [cidr] }, status: { conditions: [{ type: 'Ready', status: 'True' }] } },
})
