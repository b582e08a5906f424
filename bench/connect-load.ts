// Opens connections at a steady rate with blocking calls, to addresses by turns, and prints how many were answered and how many were not.
//
//   connect-load RATE SECONDS PORT IP…

import {
  AF_INET,
  address,
  close,
  connect,
  ints,
  recv,
  SO_LINGER,
  SO_RCVTIMEO,
  SO_SNDTIMEO,
  SOCK_STREAM,
  SOL_SOCKET,
  setsockopt,
  socket,
} from '../test/kernel/blocking-sockets.ts'

const [rate = 0, seconds = 0, port = 0] = process.argv.slice(2, 5).map(Number)
const targets = process.argv.slice(5).map((ip) => address(ip, port))
const timeout = ints(0, 0, 50_000, 0)
const answer = Buffer.alloc(4)
const pause = new Int32Array(new SharedArrayBuffer(4))
const counts = { answered: 0, failed: 0 }

function dial(to: Buffer): boolean {
  const fd = socket(AF_INET, SOCK_STREAM, 0)
  setsockopt(fd, SOL_SOCKET, SO_LINGER, ints(1, 0), 8)
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, timeout, 16)
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, timeout, 16)
  const isAnswered = connect(fd, to, 16) === 0 && recv(fd, answer, 4, 0) === 4
  close(fd)
  return isAnswered
}

const began = performance.now()
for (let made = 0; performance.now() - began < seconds * 1000; ) {
  const due = ((performance.now() - began) / 1000) * rate
  if (made >= due) Atomics.wait(pause, 0, 0, 1)
  for (let n = 0; made < due && n < 50; n++, made++) {
    if (dial(targets[made % targets.length] as Buffer)) counts.answered++
    else counts.failed++
  }
}
process.stdout.write(`${JSON.stringify(counts)}\n`)
