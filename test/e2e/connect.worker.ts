// Opens connections from inside the namespace of the node until SIGTERM, then prints how many failed and how.

import { connect } from 'node:net'

const [parallel = '4', expected = '', ...targets] = process.argv.slice(2)
const right = new Set(expected.split(','))
const failed = new Map<string, number>()
const reached = new Map<string, number>()
let made = 0
let running = true

function dial(host: string): Promise<string> {
  return new Promise((resolve) => {
    const socket = connect({ host, port: 80 })
    let text = ''
    const finish = (answer: string) => {
      socket.destroy()
      resolve(answer)
    }
    socket.setTimeout(10_000, () => finish('timeout'))
    socket.on('data', (chunk) => {
      text += chunk
    })
    socket.on('end', () => finish(text.trim()))
    socket.on('error', (error: NodeJS.ErrnoException) => finish(error.code ?? error.message))
  })
}

const count = (map: Map<string, number>, key: string) => map.set(key, (map.get(key) ?? 0) + 1)

async function loop(start: number): Promise<void> {
  for (let turn = start; running; turn++) {
    const host = targets[turn % targets.length] as string
    const heard = await dial(host)
    made++
    count(right.has(heard) ? reached : failed, right.has(heard) ? heard : `${host} ${heard}`)
  }
}

process.once('SIGTERM', () => {
  running = false
})
await Promise.all(Array.from({ length: Number(parallel) }, (_, i) => loop(i)))
process.stdout.write(
  `${JSON.stringify({ made, failed: Object.fromEntries(failed), reached: Object.fromEntries(reached) })}\n`,
)
