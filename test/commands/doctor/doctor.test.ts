import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { startApiServer } from '../../../src/apiserver/start.ts'
import type { Finding } from '../../../src/backend/finding.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { directory, sluice } from '../run-command.ts'

async function findings(...argv: string[]): Promise<{ status: number | undefined; list: readonly Finding[] }> {
  const { status, stdout, stderr } = await sluice('doctor', '-o', 'json', ...argv)
  expect(stderr).toBe('')
  return { status, list: (JSON.parse(stdout) as { findings: Finding[] }).findings }
}

async function apiServer() {
  const server = await startApiServer({ log: silentLogger })
  onTestFinished(() => server.close())
  const kubeconfig = join(directory(), 'kubeconfig')
  writeFileSync(kubeconfig, server.kubeconfig())
  return { server, kubeconfig }
}

describe('doctor', () => {
  it('says for each problem what it means and what to do', async () => {
    // Another proxy may run on this machine, whose mode the doctor would examine.
    const { status, list } = await findings('--socket', join(directory(), 'none'))
    expect(list.map(({ about }) => about)).toEqual(
      expect.arrayContaining([
        'kernel',
        'privileges',
        // The mode of a proxy that runs on this machine, if there is one.
        expect.stringMatching(/^mode /),
        'connection tracking',
        'clock',
        'proxies',
        'API server',
      ]),
    )
    for (const { level, meaning, todo, found } of list) {
      expect(found).not.toBe('')
      expect([meaning !== '', todo !== '']).toEqual([level !== 'ok', level !== 'ok'])
    }
    expect(status).toBe(list.some(({ level }) => level === 'problem') ? 3 : 0)
  })

  it('asks the API server for its version and for each permission', async () => {
    const { kubeconfig } = await apiServer()
    const { list } = await findings('--kubeconfig', kubeconfig)
    const api = list.filter(({ about }) => /^(API|may )/.test(about))
    expect(api.map(({ about, level }) => [about, level])).toEqual([
      ['API server', 'ok'],
      ['may list, watch services', 'ok'],
      ['may list, watch endpointslices', 'ok'],
      ['may list, watch servicecidrs', 'ok'],
      ['may get, list, watch nodes', 'ok'],
      ['may create, patch events', 'ok'],
    ])
  })

  it('reports a server that cannot be reached, and a token that is refused', async () => {
    const { server, kubeconfig } = await apiServer()
    const refused = join(directory(), 'refused')
    writeFileSync(refused, server.kubeconfig().replace(server.token, 'wrong'))
    const wrong = (await findings('--kubeconfig', refused)).list.filter(({ level }) => level === 'problem')
    expect(wrong.map(({ about }) => about)).toContain('may list, watch services')
    await server.close()
    const { status, list } = await findings('--kubeconfig', kubeconfig)
    expect(status).toBe(3)
    expect(list.find(({ about }) => about === 'API server')).toMatchObject({ level: 'problem' })
  })

  it('checks the mode of the configuration', async () => {
    const config = join(directory(), 'config.yaml')
    writeFileSync(
      config,
      'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: userspace\n',
    )
    const modes = async (...argv: string[]) =>
      (await findings(...argv)).list.flatMap(({ about }) => (about.startsWith('mode ') ? [about] : []))
    expect(await modes('--config', config)).toEqual(['mode userspace'])
  })

  it('prints text for people', async () => {
    const { stdout } = await sluice('doctor')
    expect(stdout).toMatch(/ABOUT +FOUND\n/)
    expect(stdout).toMatch(/\d+ problems?, \d+ warnings?, \d+ notes?\.\n$/)
  })
})
