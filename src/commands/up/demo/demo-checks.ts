// The checks of `sluice up --demo --once`: each sends packets or changes the cluster, prints the equivalent commands, and says what holds.

import { findMode } from '../../../backend/modes.ts'
import type { Terminal } from '../../terminal.ts'
import type { ToolCommands } from '../tool-commands.ts'
import type { Demo } from './demo.ts'
import { clientIp, nodes, shellIp } from './demo-network.ts'
import { empty, hello, redis } from './demo-objects.ts'

interface CheckResult {
  readonly passed: boolean
  /** One sentence about what should be the case. */
  readonly expectation: string
}

interface Address {
  readonly host: string
  readonly port: number
}

/** The demo as a check sees it: requests from inside it, and the output. */
interface CheckContext {
  readonly demo: Demo
  readonly tools: ToolCommands
  print(text: string): void
  /** Resolves with the body of the answer, or why there is none. */
  request(from: Requester, to: Address): Promise<string>
}

type Requester = 'shell' | 'client'
type Check = (context: CheckContext) => Promise<CheckResult>

const service = 'work/saythx-redis'
const clusterIp: Address = { host: redis.clusterIp, port: redis.port }
const nodePort: Address = { host: nodes.node1.ip, port: redis.nodePort }

/** The checks in the order in which they run: some change the number of pods for those after them. */
const checks: readonly Check[] = [
  checkClusterIp,
  checkNodePort,
  checkTwoPods,
  checkNodePortWithTwoPods,
  checkServiceWithoutPods,
  checkOnePodAgain,
  checkExplanation,
]

/** Runs all checks and prints each result; resolves false if any failed. */
export async function runChecks(demo: Demo, terminal: Terminal): Promise<boolean> {
  const context: CheckContext = {
    demo,
    tools: await demo.toolCommands(),
    print: (text) => terminal.write(`${text}\n`),
    request: (from, to) => demo.network.request(from, from === 'shell' ? shellIp : clientIp, to),
  }
  let allPassed = true
  for (const check of checks) {
    const { passed, expectation } = await check(context)
    allPassed &&= passed
    const result = passed ? terminal.paint('green', 'ok') : terminal.paint('red', 'FAILED')
    context.print(`  ${result}: ${expectation}`)
  }
  return allPassed
}

async function checkClusterIp(context: CheckContext): Promise<CheckResult> {
  const answer = await curl(context, 'shell', clusterIp)
  // A mode that relays connects to the pod itself, so the pod cannot see the client.
  const { hidesClients } = findMode(context.demo.mode).behaviour({ localhostNodePorts: true })
  return {
    passed: answer.startsWith('saythx-redis-1') && answer.includes(shellIp) === !hidesClients,
    expectation: hidesClients
      ? 'the only pod answers and sees the address of the node, which relays'
      : 'the only pod answers and sees the address of the client',
  }
}

async function checkNodePort(context: CheckContext): Promise<CheckResult> {
  const answer = await curl(context, 'client', nodePort)
  return {
    passed: answer.startsWith('saythx-redis-1') && !answer.includes(clientIp),
    expectation: 'the node port answers, and the pod sees the address of the node',
  }
}

async function checkTwoPods(context: CheckContext): Promise<CheckResult> {
  context.print(`$ ${context.tools.kubectl} apply -f ${context.demo.scaleFile}   # from 1 pod to 2`)
  await scaleTo(context.demo, 2)
  const answers = await countAnswers(() => context.request('shell', clusterIp), 40)
  const command = curlCommand(context.demo, 'shell', clusterIp)
  context.print(`$ for i in $(seq 40); do ${command}; done | cut -d' ' -f1 | sort | uniq -c`)
  for (const [name, count] of [...answers].sort()) context.print(`${String(count).padStart(7)} ${name}`)
  return {
    passed: answers.size === 2 && [...answers.keys()].every((name) => name.startsWith('saythx-redis-')),
    expectation: 'both pods, one on each node, answer',
  }
}

async function checkNodePortWithTwoPods(context: CheckContext): Promise<CheckResult> {
  const answers = await countAnswers(() => context.request('client', nodePort), 20)
  return { passed: answers.size === 2, expectation: 'both pods also answer on the node port, from outside' }
}

async function checkServiceWithoutPods(context: CheckContext): Promise<CheckResult> {
  await curl(context, 'shell', { host: hello.clusterIp, port: hello.port })
  const answer = await curl(context, 'shell', { host: empty.clusterIp, port: empty.port })
  return { passed: answer === 'refused', expectation: 'a service without pods refuses connections at once' }
}

async function checkOnePodAgain(context: CheckContext): Promise<CheckResult> {
  context.print(`$ ${context.tools.kubectl} delete -f ${context.demo.scaleFile}  # back to 1`)
  await scaleTo(context.demo, 1)
  const answers = await countAnswers(() => context.request('shell', clusterIp), 10)
  return {
    passed: answers.size === 1 && answers.has('saythx-redis-1'),
    expectation: 'only the remaining pod answers',
  }
}

async function checkExplanation({ demo, tools, print }: CheckContext): Promise<CheckResult> {
  const [answer] = await demo.proxy.explain({ target: service, from: shellIp })
  print(`$ ${tools.sluice('explain', service, '--from', shellIp)}`)
  for (const step of answer?.steps ?? []) print(`- ${step}`)
  const used = answer?.endpoints.filter(({ probability }) => probability > 0).map(({ address }) => address)
  const isInKernel = answer?.entries.every(({ kernel }) => kernel !== 'missing' && kernel !== 'differs')
  return {
    passed: answer?.verdict === 'forward' && used?.join() === '10.32.0.2:6379' && isInKernel === true,
    expectation: 'explain describes what the packets did, and the kernel holds the entries',
  }
}

/** Prints the curl command and its answer. */
async function curl({ demo, request, print }: CheckContext, from: Requester, to: Address): Promise<string> {
  const answer = await request(from, to)
  print(`$ ${curlCommand(demo, from, to)}\n${answer}`)
  return answer
}

const curlCommand = (demo: Demo, from: Requester, { host, port }: Address): string =>
  `ip netns exec ${demo.network.namespace(from)} curl -s http://${host}:${port}/`

async function scaleTo(demo: Demo, replicas: 1 | 2): Promise<void> {
  await demo.scale(replicas)
  await demo.waitForEndpoints(service, replicas)
}

/** Counts the answers per pod. */
async function countAnswers(request: () => Promise<string>, times: number): Promise<ReadonlyMap<string, number>> {
  const counts = new Map<string, number>()
  for (let i = 0; i < times; i++) {
    const [name = ''] = (await request()).split(' ')
    counts.set(name, (counts.get(name) ?? 0) + 1)
  }
  return counts
}
