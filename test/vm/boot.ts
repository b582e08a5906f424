// Boots a kernel in QEMU with this machine's files (changes stay in the VM), runs one command there, and returns its exit code.

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
import type { Kernel } from './provide-kernel.ts'

export interface BootOptions {
  readonly kernel: Kernel
  readonly command: readonly string[]
  readonly timeoutMs: number
  readonly memoryMb?: number
  /** Gets the output; default: the output of this process. */
  readonly out?: (chunk: Buffer) => void
  readonly err?: (chunk: Buffer) => void
  /** Gets what the command writes to the file that $SLUICE_RESULTS names. */
  readonly results?: (chunk: Buffer) => void
  /** Variables in addition to those of this process. */
  readonly environment?: Readonly<Record<string, string>>
}

export const timeLimit = 124
const vmFailed = 125

const settings = [
  ...['console=ttyS0', 'quiet', 'loglevel=4', 'panic=-1'],
  // Turns off what is slow in an emulated CPU and no test needs.
  ...['tsc=reliable', 'no_timer_check', 'mitigations=off', 'nokaslr', 'cryptomgr.notests', 'apparmor=0', 'audit=0'],
  ...['random.trust_cpu=on', 'rcupdate.rcu_expedited=1'],
]

/** Resolves with the exit code of the command, 124 when the time was up, or 125 when the VM itself failed. */
export async function boot(options: BootOptions): Promise<number> {
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
      // More than one emulated CPU was slower and less steady on a busy machine; SLUICE_VM_CPUS=2 is for a quiet one.
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
    const console = existsSync(join(control, 'console')) ? readFileSync(join(control, 'console'), 'utf8') : ''
    process.stderr.write(
      `vm: ended without an exit code (${ended}); the last lines of its console:\n${console.split('\n').slice(-25).join('\n')}\n`,
    )
    return vmFailed
  } finally {
    rmSync(control, { recursive: true, force: true })
  }
}

/** True for a real KVM. The paravirtual kind has /dev/kvm as well, but interprets an ordinary kernel, far slower than emulation. */
function hasKvm(): boolean {
  if (existsSync('/sys/module/kvm_pvm')) return false
  try {
    accessSync('/dev/kvm', constants.W_OK)
  } catch {
    return false
  }
  return /^flags\s.*\b(vmx|svm)\b/m.test(readFileSync('/proc/cpuinfo', 'utf8'))
}

function prepare(control: string, { command, environment = {} }: BootOptions): void {
  // Every start of Node parses these certificates: 0.6 s in an emulated CPU, and the VM has no network anyway.
  const { NODE_EXTRA_CA_CERTS: _, ...inherited } = process.env
  const env = { ...inherited, SLUICE_RESULTS: '/run/vm/results', ...environment }
  const list = (texts: readonly string[]) => texts.map((text) => `${text}\0`).join('')
  copyFileSync(join(import.meta.dirname, 'guest'), join(control, 'guest'))
  writeFileSync(join(control, 'command'), list(command))
  writeFileSync(join(control, 'environment'), list(Object.entries(env).map(([name, value]) => `${name}=${value}`)))
  writeFileSync(join(control, 'directory'), process.cwd())
  for (const name of ['stdout', 'stderr', 'results']) writeFileSync(join(control, name), '')
}

/** Output comes through files, because output that waits in an emulated serial port is lost at power-off. */
function runQemu(args: readonly string[], control: string, options: BootOptions): Promise<string> {
  const { out = (chunk) => process.stdout.write(chunk), err = (chunk) => process.stderr.write(chunk) } = options
  const { results = () => undefined } = options
  const qemu = spawn('qemu-system-x86_64', args, { stdio: ['ignore', 'inherit', 'inherit'] })
  const outputs = { stdout: out, stderr: err, results }
  const followers = Object.entries(outputs).map(([name, write]) => new FileFollower(join(control, name), write))
  const polling = setInterval(() => {
    for (const follower of followers) follower.read()
  }, 100)
  let isLate = false
  const timer = setTimeout(() => {
    isLate = true
    qemu.kill('SIGKILL')
  }, options.timeoutMs)
  const stop = () => qemu.kill('SIGKILL')
  process.once('exit', stop)
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(vmFailed))
  return new Promise((resolve) => {
    const finish = (how: string) => {
      clearInterval(polling)
      clearTimeout(timer)
      process.removeListener('exit', stop)
      for (const follower of followers) follower.close()
      resolve(isLate ? 'late' : how)
    }
    qemu.on('error', (error) => finish(error.message))
    qemu.on('close', (code, signal) => finish(`qemu: ${signal ?? `exit code ${code}`}`))
  })
}

/** Passes on what is appended to a file. */
class FileFollower {
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
