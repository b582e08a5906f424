// Makes the Debian packages: the executable under both names, systemd units, man pages, completions, and /etc/sluice.

import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { commitTime } from './commit.ts'
import { outputFolder } from './executable.ts'
import { type Architecture, koffiAddon } from './inputs.ts'
import { manPages } from './man-pages.ts'

const root = join(import.meta.dirname, '..')

/** Makes `sluice_VERSION_ARCHITECTURE.deb` around an executable and returns its path. */
export async function makeDeb(architecture: Architecture, executable: string): Promise<string> {
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }
  const tree = mkdtempSync(join(outputFolder, '.deb-'))
  // mkdtemp makes folders that only their owner may enter; this one becomes the root of a system.
  chmodSync(tree, 0o755)
  try {
    await addFiles(tree, architecture, executable)
    addControl(tree, architecture, version)
    const path = join(outputFolder, `sluice_${version}_${architecture}.deb`)
    const env = { ...process.env, SOURCE_DATE_EPOCH: String(commitTime()) }
    execFileSync('dpkg-deb', ['--root-owner-group', '-Zxz', '-z2', '--build', tree, path], {
      env,
      stdio: ['ignore', 'ignore', 'inherit'],
    })
    return path
  } finally {
    rmSync(tree, { recursive: true, force: true })
  }
}

async function addFiles(tree: string, architecture: Architecture, executable: string): Promise<void> {
  copy(tree, 'usr/bin/sluice', executable, 0o755)
  for (const name of ['kube-proxy', 'kubectl-sluice', 'kubectl_complete-sluice']) {
    symlinkSync('sluice', join(tree, 'usr/bin', name))
  }
  copy(tree, 'usr/lib/sluice/koffi.node', koffiAddon(architecture), 0o644)
  for (const unit of readdirSync(join(root, 'deploy/systemd'))) {
    copy(tree, `lib/systemd/system/${unit}`, join(root, 'deploy/systemd', unit), 0o644)
  }
  for (const [name, text] of await manPages())
    write(tree, `usr/share/man/man8/${name}.gz`, gzipSync(text, { level: 9 }))
  const completions = {
    bash: 'usr/share/bash-completion/completions/sluice',
    zsh: 'usr/share/zsh/vendor-completions/_sluice',
    fish: 'usr/share/fish/vendor_completions.d/sluice.fish',
  }
  for (const [shell, path] of Object.entries(completions)) write(tree, path, completion(shell))
  copy(tree, 'etc/sluice/config.conf', join(root, 'deploy/config.conf'), 0o644)
  mkdirSync(join(tree, 'etc/sluice/manifests'), { recursive: true })
  copy(tree, 'usr/share/doc/sluice/copyright', join(root, 'LICENSE'), 0o644)
}

/** The completion script, printed by the program of this very checkout. */
const completion = (shell: string): Buffer =>
  execFileSync(process.execPath, [join(root, 'bin/sluice'), 'completion', shell])

function addControl(tree: string, architecture: Architecture, version: string): void {
  const fields = {
    Package: 'sluice',
    Version: version,
    Architecture: architecture,
    Maintainer: 'The Sluice authors <sluice@sluice.invalid>',
    Section: 'net',
    Priority: 'optional',
    Depends: 'libc6 (>= 2.28), libgcc-s1, libstdc++6',
    Recommends: 'iptables, kmod',
    Homepage: 'https://sluice.invalid',
    Description:
      'Kubernetes service proxy, a drop-in kube-proxy\n Sluice turns Services into working virtual IPs with nftables, iptables, ipvs or\n in user space, inside a cluster or without one.',
  }
  write(
    tree,
    'DEBIAN/control',
    `${Object.entries(fields)
      .map(([name, value]) => `${name}: ${value}`)
      .join('\n')}\n`,
  )
  write(tree, 'DEBIAN/conffiles', '/etc/sluice/config.conf\n')
  write(tree, 'DEBIAN/postinst', script('systemctl daemon-reload || true'), 0o755)
  write(tree, 'DEBIAN/postrm', script('systemctl daemon-reload || true'), 0o755)
}

/** Runs a command where systemd is the init system; a container or chroot has none. */
const script = (command: string): string => `#!/bin/sh\nset -e\nif [ -d /run/systemd/system ]; then ${command}; fi\n`

function copy(tree: string, path: string, from: string, mode: number): void {
  mkdirSync(dirname(join(tree, path)), { recursive: true })
  copyFileSync(from, join(tree, path))
  chmodSync(join(tree, path), mode)
}

function write(tree: string, path: string, content: string | Uint8Array, mode = 0o644): void {
  mkdirSync(dirname(join(tree, path)), { recursive: true })
  writeFileSync(join(tree, path), content)
  chmodSync(join(tree, path), mode)
}
