import { createServer } from 'node:http'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { directory, sluice } from './run-command.ts'

const complete = async (...words: readonly string[]) =>
  (await sluice('__complete', '--', ...words)).stdout.split('\n').slice(0, -1)

describe('completion for kubectl', () => {
  it('offers commands, flags, values and files', async () => {
    expect(await complete('n')).toEqual(['nodes', ':4'])
    expect(await complete('nodes', '--c')).toEqual(['--context', ':4'])
    expect(await complete('nodes', '-o', 'j')).toEqual(['json', ':4'])
    expect(await complete('nodes', '--output=y')).toEqual(['--output=yaml', ':4'])
    expect(await complete('nodes', '--kubeconfig', '')).toEqual([':0'])
  })

  it('offers every visible command first, and nothing for an unknown command', async () => {
    expect(await complete('')).toEqual(expect.arrayContaining(['status', 'explain', 'top', 'nodes', 'version', ':4']))
    expect(await complete('')).not.toContain('connect')
    expect(await complete('unknown', '')).toEqual([':4'])
  })
})

describe('completion for shells', () => {
  const described = async (...words: readonly string[]) =>
    (await sluice('__complete', '--describe', '--', ...words)).stdout.split('\n').slice(0, -1)

  it('describes commands and flags', async () => {
    expect(await described('comp')).toEqual(['completion\tprint a completion script for bash, zsh or fish', ':4'])
    expect(await described('cleanup', '--h')).toEqual(['--help\tshow this text', ':4'])
  })

  it('offers the flags and values of kube-proxy, the names of shells, and commands after help', async () => {
    expect(await complete('pro')).toEqual(['proxy', ':4'])
    expect(await complete('proxy', '--proxy-m')).toEqual(['--proxy-mode', ':4'])
    expect(await complete('proxy', '--proxy-mode', 'ipv')).toEqual(['ipvs', ':4'])
    expect(await complete('proxy', '--config', '')).toEqual([':0'])
    expect(await complete('completion', '')).toEqual(['bash', 'zsh', 'fish', ':4'])
    expect(await complete('help', 'exp')).toEqual(['explain', ':4'])
  })

  it('offers the services of the running proxy, each once', async () => {
    const socket = join(directory(), 'x.sock')
    const services = ['default/hello', 'work/redis', 'work/redis'].map((service) => ({ service }))
    const server = createServer((request, response) =>
      response.end(request.url?.startsWith('/v1/services') ? JSON.stringify(services) : '{}'),
    )
    await new Promise<void>((resolve) => server.listen(socket, resolve))
    onTestFinished(() => void server.close())
    expect(await complete('explain', '--socket', socket, '')).toEqual(['default/hello', 'work/redis', ':4'])
    expect(await complete('status', '--socket', socket, 'wo')).toEqual(['work/redis', ':4'])
    expect(await complete('explain', '--manifests', '/x', '')).toEqual([':4'])
    expect(await complete('explain', '--socket', '/nowhere', '')).toEqual([':4'])
  })
})
