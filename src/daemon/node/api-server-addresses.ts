// Keeps the addresses of the API server: those that our client dials, and the endpoints of the Service default/kubernetes.

import type { RecordSink } from '../../kube/reflect/change-filter.ts'
import { hostPort } from '../../lib/ip.ts'
import { apiServerEndpoints, apiServerService } from '../../model/reserved-addresses.ts'
import type { ServiceRecord, SliceRecord, SocketAddress } from '../../model/types.ts'

export class ApiServerAddresses {
  #dialed: readonly SocketAddress[] = []
  readonly #slices = new Map<string, SliceRecord>()
  /** The addresses of default/kubernetes itself, as `ip`. */
  #serviceIps: ReadonlySet<string> = new Set()
  #onChange: (addresses: readonly SocketAddress[]) => void = () => {}

  /**
   * The client may dial an address of the Service default/kubernetes. That address must be translated, so it is not the API server's own;
   * other services cannot take it, because a cluster IP goes first.
   */
  list(): readonly SocketAddress[] {
    const dialed = this.#dialed.filter(({ ip }) => !this.#serviceIps.has(ip))
    const all = [...dialed, ...apiServerEndpoints(this.#slices.values())]
    return [...new Map(all.map((one) => [hostPort(one.ip, one.port), one])).values()]
  }

  /** Whether the client dials the address, or did within the last hour. */
  isDialed(ip: string): boolean {
    return this.#dialed.some((address) => address.ip === ip)
  }

  watch(onChange: (addresses: readonly SocketAddress[]) => void): void {
    this.#onChange = onChange
  }

  setDialed(addresses: readonly SocketAddress[]): void {
    this.#dialed = addresses
    this.#report()
  }

  /** Returns a sink that passes everything on, and reads default/kubernetes on the way. */
  readServices(sink: RecordSink<ServiceRecord>): RecordSink<ServiceRecord> {
    const set = (record: ServiceRecord | undefined) => {
      this.#serviceIps = new Set(record && [...record.clusterIps, ...record.externalIps, ...record.loadBalancerIps])
      this.#report()
    }
    return {
      ...passOn(sink),
      put: (key, record) => {
        sink.put(key, record)
        if (key === apiServerService) set(record)
      },
      drop: (key) => {
        sink.drop(key)
        if (key === apiServerService) set(undefined)
      },
    }
  }

  /** As `readServices`, for the slices of default/kubernetes. */
  readSlices(sink: RecordSink<SliceRecord>): RecordSink<SliceRecord> {
    return {
      ...passOn(sink),
      put: (key, record) => {
        sink.put(key, record)
        if (record.service === apiServerService) {
          this.#slices.set(key, record)
          this.#report()
        } else if (this.#slices.delete(key)) this.#report()
      },
      drop: (key) => {
        sink.drop(key)
        if (this.#slices.delete(key)) this.#report()
      },
    }
  }

  #report(): void {
    this.#onChange(this.list())
  }
}

const passOn = <R>(sink: RecordSink<R>): Pick<RecordSink<R>, 'synced' | 'problem'> => ({
  synced: () => sink.synced(),
  problem: (problem) => sink.problem(problem),
})
