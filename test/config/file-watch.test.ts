import {
  appendFileSync,
  chmodSync,
  mkdirSync,
  mkdtempSync,
  renameSync,
  rmSync,
  symlinkSync,
  unlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { type FileWatch, watchConfigFile } from '../../src/config/file-watch.ts'

describe('watching the configuration file', () => {
  let directory = ''
  let path = ''
  let watch: FileWatch
  let reasons: string[] = []

  const start = (name = path) => {
    watch = watchConfigFile(name, (reason) => reasons.push(reason))
  }
  const fired = () => vi.waitFor(() => expect(reasons).toHaveLength(1), { timeout: 5000, interval: 5 })
  /** Events come in order: when a later change is reported, the earlier ones have been ignored. */
  const ignored = async () => {
    const marker = join(directory, 'marker')
    writeFileSync(marker, 'a')
    const seen: string[] = []
    const other = watchConfigFile(marker, (reason) => seen.push(reason))
    writeFileSync(marker, 'b')
    await vi.waitFor(() => expect(seen).toHaveLength(1), { timeout: 5000, interval: 5 })
    other.close()
    expect(reasons).toEqual([])
  }

  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'watch-'))
    path = join(directory, 'config.conf')
    writeFileSync(path, 'mode: iptables\n')
    reasons = []
  })
  afterEach(() => {
    watch.close()
    rmSync(directory, { recursive: true })
  })

  it('A24: reports a write once', async () => {
    start()
    writeFileSync(path, 'mode: nftables\n')
    await fired()
    appendFileSync(path, '#\n')
    expect(reasons).toEqual(['was written to'])
  })

  it('A24: reports an append', async () => {
    start()
    appendFileSync(path, 'masqueradeAll: true\n')
    await fired()
  })

  it('A24: reports a move', async () => {
    start()
    renameSync(path, `${path}.old`)
    await fired()
    expect(reasons).toEqual(['was moved'])
  })

  it('A24: ignores a chmod, and still reports the write after it', async () => {
    start()
    chmodSync(path, 0o600)
    await ignored()
    appendFileSync(path, '#\n')
    await fired()
  })

  it('A24: ignores the removal of the file', async () => {
    start()
    unlinkSync(path)
    await ignored()
  })

  it('A24: ignores a new file renamed over this one', async () => {
    start()
    writeFileSync(`${path}.new`, 'mode: ipvs\n')
    renameSync(`${path}.new`, path)
    await ignored()
  })

  it('A24: ignores the update of a ConfigMap volume, which swaps a symbolic link', async () => {
    for (const version of ['1', '2']) {
      mkdirSync(join(directory, version))
      writeFileSync(join(directory, version, 'kube.conf'), `version ${version}\n`)
    }
    symlinkSync('1', join(directory, '..data'))
    symlinkSync('..data/kube.conf', join(directory, 'kube.conf'))
    start(join(directory, 'kube.conf'))
    symlinkSync('2', join(directory, '..data_tmp'))
    renameSync(join(directory, '..data_tmp'), join(directory, '..data'))
    rmSync(join(directory, '1'), { recursive: true })
    await ignored()
  })

  it('reports nothing after it was closed', async () => {
    start()
    watch.close()
    watch.close()
    appendFileSync(path, '#\n')
    await ignored()
  })

  it('fails at once if the file does not exist', () => {
    start()
    expect(() => watchConfigFile(join(directory, 'none'), () => {})).toThrow('ENOENT')
  })
})
