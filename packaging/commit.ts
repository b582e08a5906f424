// The commit that is packaged: its id and its time, which every archive claims as its own, so that two builds are equal.

import { execFileSync } from 'node:child_process'
import { join } from 'node:path'

const git = (...args: string[]): string =>
  execFileSync('git', args, { cwd: join(import.meta.dirname, '..'), encoding: 'utf8' }).trim()

/** Unix seconds. SOURCE_DATE_EPOCH, the convention of reproducible builds, goes first. */
export const commitTime = (): number => Number(process.env.SOURCE_DATE_EPOCH ?? git('log', '-1', '--format=%ct'))

export const commitId = (): string => git('rev-parse', 'HEAD')
