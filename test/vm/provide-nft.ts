// Unpacks the nft of another Debian suite with its libraries into the cache, and prints its folder.
//
// `PATH=$(tsx test/vm/provide-nft.ts trixie):$PATH …` uses it.

import { chmodSync, existsSync, mkdirSync, readdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { cache, privateApt, run } from './apt.ts'
import { capture } from './host-packages.ts'

/** The dependencies that nft loads. */
const loaded = /^(nftables|lib[a-z0-9.+-]+)$/

function provideNft(suite: string): string {
  const directory = join(cache, `nft-${suite}`)
  if (existsSync(join(directory, 'nft'))) return directory
  const work = `${directory}.new`
  rmSync(work, { recursive: true, force: true })
  mkdirSync(join(work, 'tree'), { recursive: true })
  const apt = privateApt(suite, work)
  run('apt-get', [...apt, 'update'])
  const only = ['recommends', 'suggests', 'conflicts', 'breaks', 'replaces', 'enhances'].map((word) => `--no-${word}`)
  const listed = capture('apt-cache', [...apt, 'depends', '--recurse', ...only, 'nftables']) ?? ''
  const names = listed.split('\n').filter((line) => loaded.test(line))
  if (names.length === 0) throw new Error(`${suite} has no package nftables`)
  run('apt-get', [...apt, 'download', ...new Set(names)], work)
  for (const deb of readdirSync(work).filter((name) => name.endsWith('.deb'))) {
    run('dpkg-deb', ['-x', join(work, deb), join(work, 'tree')])
    rmSync(join(work, deb))
  }
  rmSync(join(work, 'apt'), { recursive: true })
  const usr = join(directory, 'tree/usr')
  const loader = `${usr}/lib64/ld-linux-x86-64.so.2 --library-path ${usr}/lib/x86_64-linux-gnu`
  writeFileSync(join(work, 'nft'), `#!/bin/sh\nexec ${loader} ${usr}/sbin/nft "$@"\n`)
  chmodSync(join(work, 'nft'), 0o755)
  rmSync(directory, { recursive: true, force: true })
  renameSync(work, directory)
  return directory
}

process.stdout.write(`${provideNft(process.argv[2] ?? 'trixie')}\n`)
