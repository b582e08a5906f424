// The two ends of a storm of connections, with blocking calls in processes of their own: sockets of Node would be the bottleneck.
//
//   storm.worker server PORT                          answers every connection with the address it came to
//   storm.worker client COUNT SOURCE PORT VIP=NET…    connects to the services in turn; NET is how right answers begin
//   storm.worker client COUNT@RATE SOURCE PORT …      the same with RATE connections per second at most

import {
  AF_INET,
  address,
  bind,
  check,
  close,
  connect,
  errno,
  ints,
  recv,
  SO_LINGER,
  SO_RCVTIMEO,
  SO_SNDTIMEO,
  SOCK_STREAM,
  SOL_SOCKET,
  serve,
  setsockopt,
  socket,
} from './blocking-sockets.ts'

const [IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT] = [0, 24]

interface Storm {
  readonly count: number
  /** Connections per second at most; 0 for as many as possible. */
  readonly rate: number
  readonly source: string
  readonly port: number
}

const pause = new Int32Array(new SharedArrayBuffer(4))

/** Waits until the connection of this number is due. */
function waitForTurn(number: number, rate: number, beganAt: number): void {
  const early = rate === 0 ? 0 : beganAt + (number * 1000) / rate - performance.now()
  if (early > 0) Atomics.wait(pause, 0, 0, early)
}

function dial({ count, rate, source, port }: Storm, targets: readonly { vip: string; net: string }[]): void {
  const from = address(source, 0)
  const aims = targets.map(({ vip, net }) => ({ address: address(vip, port), vip, net: net.split('.').map(Number) }))
  const linger = ints(1, 0)
  const patience = Buffer.alloc(16)
  patience.writeBigInt64LE(20n, 0)
  const answer = Buffer.alloc(4)
  const failed: string[] = []
  const micros: number[] = []
  let misrouted = 0
  let slow = 0
  const beganAt = performance.now()
  for (let i = 0; i < count; i++) {
    waitForTurn(i, rate, beganAt)
    const aim = aims[i % aims.length] as (typeof aims)[number]
    const fd = check('socket', socket(AF_INET, SOCK_STREAM, 0))
    setsockopt(fd, SOL_SOCKET, SO_LINGER, linger, 8)
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, patience, 16)
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, patience, 16)
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, ints(1), 4)
    check('bind', bind(fd, from, 16))
    const began = process.hrtime.bigint()
    if (connect(fd, aim.address, 16) < 0) failed.push(`connect to ${aim.vip}: errno ${errno()}`)
    else if (recv(fd, answer, 4, 0) !== 4) failed.push(`answer of ${aim.vip}: errno ${errno()}`)
    else if (aim.net.some((part, n) => answer[n] !== part)) misrouted++
    const took = Number(process.hrtime.bigint() - began) / 1000
    if (took > 900_000) slow++
    micros.push(took)
    close(fd)
  }
  const perSecond = (count * 1000) / (performance.now() - beganAt)
  micros.sort((a, b) => a - b)
  const at = (share: number) => micros[Math.floor((micros.length - 1) * share)]
  const figures = { made: count, failed: failed.length, first: failed[0], misrouted, slow }
  process.stdout.write(`${JSON.stringify({ ...figures, p50: at(0.5), p99: at(0.99), perSecond })}\n`)
}

const [role, ...args] = process.argv.slice(2)
if (role === 'server') serve(Number(args[0]))
else {
  const [count, source, port, ...targets] = args as [string, string, string, ...string[]]
  const aims = targets.map((target) => {
    const [vip, net] = target.split('=') as [string, string]
    return { vip, net }
  })
  const [number, rate = 0] = count.split('@').map(Number) as [number, number?]
  dial({ count: number, rate, source, port: Number(port) }, aims)
}
