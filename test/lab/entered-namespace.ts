// A network namespace for one test file. The test process itself enters it, so that its sockets and the programs it runs are there.

import { execFileSync } from 'node:child_process'
import { constants } from 'node:fs'
import * as libc from '../../src/sys/libc.ts'

export interface EnteredNamespace {
  readonly name: string
  /** Runs a program inside and returns its stdout. Throws an error with its stderr if it fails. */
  exec(program: string, args: readonly string[], stdin?: string): string
  /** Leaves and removes the namespace. */
  leave(): void
}

let count = 0

/** Moves only the calling thread. With vitest's forks that is the whole test file and nothing else. */
export function enterNamespace(): EnteredNamespace {
  const name = `sluice-${process.pid}-${count++}`
  const home = check(libc.open('/proc/thread-self/ns/net', constants.O_RDONLY))
  execFileSync('ip', ['netns', 'add', name])
  const fd = check(libc.open(`/run/netns/${name}`, constants.O_RDONLY))
  check(libc.setns(fd, libc.CLONE_NEWNET))
  libc.close(fd)
  const exec = (program: string, args: readonly string[], stdin = '') =>
    execFileSync(program, args, { input: stdin, encoding: 'utf8', stdio: ['pipe', 'pipe', 'pipe'], maxBuffer: 1 << 28 })
  exec('ip', ['link', 'set', 'lo', 'up'])
  return {
    name,
    exec,
    leave() {
      check(libc.setns(home, libc.CLONE_NEWNET))
      libc.close(home)
      execFileSync('ip', ['netns', 'del', name])
    },
  }
}

function check(returned: number): number {
  if (returned < 0) throw new Error(`errno ${-returned}`)
  return returned
}
