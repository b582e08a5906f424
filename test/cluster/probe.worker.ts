// Opens one connection after the other to each target, from the network namespace in which it was started, until its input ends; then it
// prints how many it made and which failed. Arguments: MILLISECONDS between connections of one target, then NAME=http://… or NAME=dns://….

import { Resolver } from 'node:dns/promises'
import { request } from 'node:http'
import { setTimeout as delay } from 'node:timers/promises'

const [every = '50', ...targets] = process.argv.slice(2)
const limitMs = 2_000
const began = Date.now()
const results: { target: string; made: number; failures: { at: number; why: string }[] }[] = []
const answers = new Map<string, number>()
const running = new Set<Promise<void>>()
let ended = false

function get(url: string): Promise<string> {
  return new Promise((resolve, reject) => {
    // An agent would keep connections open, and a kept connection shows nothing of a service proxy.
    const client = request(url, { agent: false, timeout: limitMs }, (response) => {
      let text = ''
      response.on('data', (chunk) => {
        text += chunk
      })
      response.on('error', reject)
      response.on('end', () =>
        response.statusCode === 200 ? resolve(text) : reject(new Error(`status ${response.statusCode}`)),
      )
    })
    client.on('timeout', () => client.destroy(new Error('no answer')))
    client.on('error', reject)
    client.end()
  })
}

async function ask(url: URL): Promise<string> {
  const resolver = new Resolver({ timeout: limitMs, tries: 1 })
  resolver.setServers([url.host])
  return (await resolver.resolve4(url.pathname.slice(1))).join()
}

async function probe(url: URL, result: (typeof results)[number]): Promise<void> {
  const at = Date.now() - began
  result.made++
  try {
    const answer = await (url.protocol === 'dns:' ? ask(url) : get(url.href))
    answers.set(answer, (answers.get(answer) ?? 0) + 1)
  } catch (error) {
    result.failures.push({ at, why: (error as NodeJS.ErrnoException).code ?? (error as Error).message })
  }
}

/** Starts a probe at fixed times, whether or not the one before has ended: a target that hangs does not slow the load down. */
async function load(target: string): Promise<void> {
  const split = target.indexOf('=')
  const url = new URL(target.slice(split + 1))
  const result = { target: target.slice(0, split), made: 0, failures: [] }
  results.push(result)
  while (!ended) {
    const one = probe(url, result)
    running.add(one)
    void one.then(() => running.delete(one))
    await delay(Number(every))
  }
}

process.stdin.on('end', () => {
  ended = true
})
process.stdin.resume()
process.stdout.write('ready\n')
await Promise.all(targets.map(load))
await Promise.all(running)
process.stdout.write(`${JSON.stringify({ results, answers: Object.fromEntries(answers) })}\n`)
