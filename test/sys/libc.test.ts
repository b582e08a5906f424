import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { errnoName, errnoText } from '../../src/sys/errno.ts'
import * as libc from '../../src/sys/libc.ts'

const root = join(import.meta.dirname, '../..')

describe('libc', () => {
  it('is not loaded until it is needed', () => {
    const script = `
      import { createRequire } from 'node:module'
      await import('./src/sys/netlink/nft/nftables.ts')
      const libc = await import('./src/sys/libc.ts')
      const loaded = () => Object.keys(createRequire(import.meta.url).cache).some((path) => path.includes('koffi'))
      const before = loaded()
      libc.close(-1)
      console.log(before, loaded())
    `
    const args = ['--import', 'tsx', '--input-type=module', '-e', script]
    expect(execFileSync(process.execPath, args, { encoding: 'utf8', cwd: root }).trim()).toBe('false true')
  })

  it('continues what awaits a readable descriptor, in a process in which nothing else happens', async () => {
    const script = `
      import { readSync, writeSync } from 'node:fs'
      import { watchReadable } from './src/sys/libc.ts'
      const bytes = Buffer.alloc(1)
      let resolve
      const readable = () => new Promise((settle) => { resolve = settle })
      let next = readable()
      watchReadable(0, () => {
        if (readSync(0, bytes, 0, 1) === 0) process.exit()
        resolve()
      }, true)
      for (;;) {
        await next
        next = readable()
        writeSync(1, bytes)
      }
    `
    const args = ['--import', 'tsx', '--input-type=module', '-e', script]
    const child = spawn(process.execPath, args, { cwd: root, stdio: ['pipe', 'pipe', 'inherit'] })
    try {
      for (const letter of 'abc') {
        child.stdin.write(letter)
        const [answer] = await once(child.stdout, 'data')
        expect(String(answer)).toBe(letter)
      }
    } finally {
      child.kill()
    }
    // Where the promise waits, something of Node's own continues it after about 15 seconds.
  }, 10_000)

  it('returns minus the error number', () => {
    expect(libc.close(-1)).toBe(-9)
    expect(libc.recv(-1, new Uint8Array(8), libc.MSG_DONTWAIT)).toBe(-9)
    expect(libc.open('/no/such/file', 0)).toBe(-2)
    expect(libc.getsockname(-1, new Uint8Array(12))).toBe(-9)
  })

  it('does not read beyond a buffer', () => {
    expect(() => libc.send(0, new Uint8Array(8), 9)).toThrow('cannot send 9 bytes from a buffer of 8')
  })

  it('sends from and receives into parts of buffers', () => {
    const fd = libc.socket(libc.AF_NETLINK, libc.SOCK_RAW | libc.SOCK_CLOEXEC, 0)
    expect(fd).toBeGreaterThan(0)
    // This is an RTM_GETADDR; its answer does not matter.
    const request = Buffer.alloc(64)
    request.writeUInt32LE(24, 8)
    request.writeUInt16LE(22, 12)
    request.writeUInt16LE(0x301, 14)
    request.writeUInt32LE(77, 16)
    request[24] = 200
    expect(libc.send(fd, request.subarray(8), 24)).toBe(24)
    const answer = Buffer.alloc(4096)
    const length = libc.recv(fd, answer.subarray(1000, 1020), libc.MSG_DONTWAIT | libc.MSG_TRUNC)
    expect(length).toBeGreaterThanOrEqual(16)
    expect(answer.readUInt32LE(1008)).toBe(77)
    expect(answer.subarray(1020).every((byte) => byte === 0)).toBe(true)
    let left = 0
    while (left >= 0) left = libc.recv(fd, answer, libc.MSG_DONTWAIT)
    expect(left).toBe(-11)
    libc.close(fd)
  })

  it('receives several datagrams by one call, and reports those that are too long', () => {
    const [AF_UNIX, SOCK_DGRAM] = [1, 2]
    const open = () => libc.socket(AF_UNIX, SOCK_DGRAM | libc.SOCK_CLOEXEC, 0)
    const [receiver, sender] = [open(), open()]
    // The kernel chooses a name that is not a file.
    expect(libc.bind(receiver, Uint8Array.of(AF_UNIX, 0))).toBe(0)
    const name = Buffer.alloc(32)
    expect(libc.connect(sender, name.subarray(0, libc.getsockname(receiver, name)))).toBe(0)
    const batch = new libc.DatagramBatch(3, 8)
    const receive = () => batch.receive(receiver, libc.MSG_DONTWAIT | libc.MSG_TRUNC)
    expect(receive()).toBe(-11)
    for (const text of ['one', 'two', 'much too long', 'four']) libc.send(sender, Buffer.from(text), text.length)
    const texts = (count: number) =>
      Array.from({ length: count }, (_, i) => {
        const at = i * batch.slotBytes
        return batch.bytes.toString('utf8', at, at + Math.min(batch.slotBytes, batch.lengthOf(i)))
      })
    expect(texts(receive())).toEqual(['one', 'two', 'much too'])
    expect([0, 1, 2].map((i) => batch.lengthOf(i))).toEqual([3, 3, 13])
    expect(texts(receive())).toEqual(['four'])
    expect(receive()).toBe(-11)
    libc.close(receiver)
    libc.close(sender)
    expect(batch.receive(-1, 0)).toBe(-9)
  })
})

it('names error numbers', () => {
  expect([2, 85, 95, 105, 9999].map(errnoName)).toEqual(['ENOENT', 'ERESTART', 'EOPNOTSUPP', 'ENOBUFS', 'errno 9999'])
  expect(errnoText(2)).toBe('no such file or directory')
  expect(errnoText(9999)).toBe('')
})
