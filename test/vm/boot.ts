// Boots a kernel in QEMU with this machine's files (changes stay in the VM), runs one command there, and ends with its exit code.

import { spawn } from 'node:child_process'
import {
  accessSync,
  closeSync,
  constants,
  copyFileSync,
  existsSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Kernel } from './kernel.ts'

export interface Boot {
  readonly kernel: Kernel
  readonly command: readonly string[]
  readonly timeoutMs: number
  readonly memoryMb?: number
  /** Where output goes; default: our own. */
  readonly out?: (chunk: Buffer) => void
  readonly err?: (chunk: Buffer) => void
  /** What the command writes to the file that $SLUICE_RESULTS names. */
  readonly results?: (chunk: Buffer) => void
  /** Variables on top of our own. */
  readonly environment?: Readonly<Record<string, string>>
}

export const timeLimit = 124
const vmFailed = 125

const settings = [
  ...['console=ttyS0', 'quiet', 'loglevel=4', 'panic=-1'],
  // What an emulated CPU is slow at and a test does not need.
  ...['tsc=reliable', 'no_timer_check', 'mitigations=off', 'nokaslr', 'cryptomgr.notests', 'apparmor=0', 'audit=0'],
  ...['random.trust_cpu=on', 'rcupdate.rcu_expedited=1'],
]

/** Resolves with the exit code: the command's, 124 when time was up, 125 when the VM itself failed. */
export async function boot(options: Boot): Promise<number> {
  const { kernel, memoryMb = 1536 } = options
  const control = mkdtempSync(join(tmpdir(), 'sluice-vm-'))
  try {
    prepare(control, options)
    const share = (tag: string, path: string, mode: string) => [
      ...['-fsdev', `local,id=${tag},path=${path},security_model=none,multidevs=remap${mode}`],
      ...['-device', `virtio-9p-pci,fsdev=${tag},mount_tag=${tag}`],
    ]
    const args = [
      ...['-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot'],
      ...[
        '-m',
        String(memoryMb),
        '-smp',
        process.env.SLUICE_VM_CPUS ?? '1',
        '-machine',
        'pc,usb=off,vmport=off,hpet=off',
      ],
      ...['-serial', `file:${join(control, 'console')}`],
      // More than one emulated CPU was slower and unsteady on a busy machine; SLUICE_VM_CPUS=2 is for a quiet one.
      ...(hasKvm() ? ['-accel', 'kvm', '-cpu', 'host'] : ['-accel', 'tcg,thread=multi,tb-size=512', '-cpu', 'max']),
      ...['-kernel', join(kernel.directory, 'vmlinux'), '-initrd', join(kernel.directory, 'initrd')],
      ...['-append', [...settings, `sluice.modules=${join(kernel.directory, 'modules')}`].join(' ')],
      ...share('root', '/', ',readonly=on'),
      ...share('control', control, ''),
    ]
    const ended = await runQemu(args, control, options)
    const status = join(control, 'status')
    if (existsSync(status)) return Number(readFileSync(status, 'utf8'))
    if (ended === 'late') return timeLimit
    const words = existsSync(join(control, 'console')) ? readFileSync(join(control, 'console'), 'utf8') : ''
    process.stderr.write(
      `vm: ended without an exit code (${ended}); its last words:\n${words.split('\n').slice(-25).join('\n')}\n`,
    )
    return vmFailed
  } finally {
    rmSync(control, { recursive: true, force: true })
  }
}

/** A real one: the paravirtual kind has /dev/kvm as well, but interprets an ordinary kernel, far slower than emulation. */
function hasKvm(): boolean {
  if (existsSync('/sys/module/kvm_pvm')) return false
  try {
    accessSync('/dev/kvm', constants.W_OK)
  } catch {
    return false
  }
  return /^flags\s.*\b(vmx|svm)\b/m.test(readFileSync('/proc/cpuinfo', 'utf8'))
}

function prepare(control: string, { command, environment = {} }: Boot): void {
  // Every start of Node parses this bundle: 0.6 s in an emulated CPU, and there is no network anyway.
  const { NODE_EXTRA_CA_CERTS: _, ...inherited } = process.env
  const env = { ...inherited, SLUICE_RESULTS: '/run/vm/results', ...environment }
  const list = (texts: readonly string[]) => texts.map((text) => `${text}\0`).join('')
  copyFileSync(join(import.meta.dirname, 'guest'), join(control, 'guest'))
  writeFileSync(join(control, 'command'), list(command))
  writeFileSync(join(control, 'environment'), list(Object.entries(env).map(([name, value]) => `${name}=${value}`)))
  writeFileSync(join(control, 'directory'), process.cwd())
  for (const name of ['stdout', 'stderr', 'results']) writeFileSync(join(control, name), '')
}

/** Output comes through files, since what waits in an emulated serial port is lost at power-off. */
function runQemu(args: readonly string[], control: string, options: Boot): Promise<string> {
  const { out = (chunk) => process.stdout.write(chunk), err = (chunk) => process.stderr.write(chunk) } = options
  const { results = () => undefined } = options
  const qemu = spawn('qemu-system-x86_64', args, { stdio: ['ignore', 'inherit', 'inherit'] })
  const outputs = { stdout: out, stderr: err, results }
  const follow = Object.entries(outputs).map(([name, write]) => new Follower(join(control, name), write))
  const look = setInterval(() => {
    for (const one of follow) one.read()
  }, 100)
  let late = false
  const timer = setTimeout(() => {
    late = true
    qemu.kill('SIGKILL')
  }, options.timeoutMs)
  const stop = () => qemu.kill('SIGKILL')
  process.once('exit', stop)
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(vmFailed))
  return new Promise((resolve) => {
    const finish = (how: string) => {
      clearInterval(look)
      clearTimeout(timer)
      process.removeListener('exit', stop)
      for (const one of follow) one.close()
      resolve(late ? 'late' : how)
    }
    qemu.on('error', (error) => finish(error.message))
    qemu.on('close', (code, signal) => finish(`qemu: ${signal ?? `exit code ${code}`}`))
  })
}

class Follower {
  readonly #fd: number
  readonly #write: (chunk: Buffer) => void

  constructor(path: string, write: (chunk: Buffer) => void) {
    this.#fd = openSync(path, 'r')
    this.#write = write
  }

  read(): void {
    for (;;) {
      const chunk = Buffer.alloc(65_536)
      const length = readSync(this.#fd, chunk)
      if (length === 0) return
      this.#write(chunk.subarray(0, length))
    }
  }

  close(): void {
    this.read()
    closeSync(this.#fd)
  }
}
