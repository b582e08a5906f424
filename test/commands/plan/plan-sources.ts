// Starts an API server with objects in it, and plans changes of it from all three sources: a running proxy, a kubeconfig and manifests.

import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { onTestFinished } from 'vitest'
import { parseAllDocuments } from 'yaml'
import { type ApiServer, startApiServer } from '../../../src/apiserver/start.ts'
import { readFromApi } from '../../../src/commands/sources/from-api.ts'
import { configFrom } from '../../../src/commands/sources/source.ts'
import type { AdminAnswers } from '../../../src/http/admin.ts'
import { listenAdmin } from '../../../src/http/admin-listener.ts'
import { readObject } from '../../../src/kube/api-objects.ts'
import { silentLogger } from '../../../src/lib/log.ts'
import { directory, type Ran, sluice } from '../run-command.ts'

type Source = 'running proxy' | 'kubeconfig' | 'manifests'

export const allSources: readonly Source[] = ['running proxy', 'kubeconfig', 'manifests']

export interface PlanSources {
  readonly server: ApiServer
  /** Creates the objects as `kubectl apply` does. */
  apply(yaml: string): Promise<void>
  plan(source: Source, files: Readonly<Record<string, string>>, ...more: readonly string[]): Promise<Ran>
}

export async function startSources(): Promise<PlanSources> {
  const server = await startApiServer({ log: silentLogger, serviceCidrs: ['10.96.0.0/16'] })
  onTestFinished(() => server.close())
  await server.client.request({ method: 'POST', path: '/api/v1/nodes', body: { metadata: { name: 'a' } } })
  const folder = directory()
  const kubeconfig = join(folder, 'kubeconfig')
  writeFileSync(kubeconfig, server.kubeconfig())
  const socket = join(folder, 'proxy.sock')
  const admin = await listenAdmin(socket, answerFrom(server), silentLogger)
  onTestFinished(() => admin.close())
  const applied: string[] = []
  return {
    server,
    async apply(yaml) {
      applied.push(yaml)
      for (const document of parseAllDocuments(yaml)) await create(server, document.toJS())
    },
    plan(source, files, ...more) {
      const paths = Object.entries(files).flatMap(([name, text]) => ['-f', `${directory({ [name]: text })}/${name}`])
      const flags = {
        'running proxy': ['--socket', socket],
        kubeconfig: ['--kubeconfig', kubeconfig, '--node', 'a'],
        manifests: ['--manifests', directory({ 'applied.yaml': applied.join('---\n') }), '--node', 'a'],
      }[source]
      return sluice('plan', ...paths, ...flags, '--no-check', ...more)
    },
  }
}

interface ApiObject {
  readonly kind: string
  readonly metadata: { readonly name: string; readonly namespace?: string; readonly annotations?: object }
}

async function create({ client }: ApiServer, object: ApiObject): Promise<void> {
  const { kind, metadata } = object
  const { namespace = 'default' } = metadata
  const path = {
    Namespace: '/api/v1/namespaces',
    Service: `/api/v1/namespaces/${namespace}/services`,
    EndpointSlice: `/apis/discovery.k8s.io/v1/namespaces/${namespace}/endpointslices`,
  }[kind]
  const lastApplied = { 'kubectl.kubernetes.io/last-applied-configuration': JSON.stringify(object) }
  const body = { ...object, metadata: { ...metadata, annotations: { ...metadata.annotations, ...lastApplied } } }
  await client.request({ method: 'POST', path: path ?? kind, query: { fieldValidation: 'Strict' }, body })
}

/** Answers the questions of `sluice plan` as the proxy of that API server does. */
function answerFrom({ client }: ApiServer): AdminAnswers {
  const config = configFrom(new Map([['mode', 'nftables']]))
  return {
    inputs: () => readFromApi(client, { name: 'a', config }),
    object: (question: Parameters<AdminAnswers['object']>[0]) => readObject(client, question),
  } as unknown as AdminAnswers
}
