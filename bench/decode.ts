// Measures how long a watch event takes from its bytes to its record: as JSON, as protobuf through the tables, and as protobuf read straight
// into the record, which is what the proxy does with ordinary objects.
//
//   npm run bench:decode
//
// Measures with this Node, and with the Node and flags of the executable if `npm run package` has made it. The ways take turns, so that a
// machine whose speed changes is unfair to none. The median of all rounds is printed, and the size.

import { execFileSync } from 'node:child_process'
import { parseEvent, type WatchMessage } from '../src/kube/reflect/watch-messages.ts'
import { endpointSlices, services, type WatchedResource } from '../src/kube/reflect/watched-resources.ts'
import { bundleProgram } from '../test/support/bundle-program.ts'
import { service, slice } from './api-objects.ts'
import { chooseForm } from './object-forms.ts'
import { findOwnPrograms } from './start-proxy.ts'

const objects = 2_000
const rounds = 40

interface Way {
  readonly name: string
  readonly messages: readonly WatchMessage[]
  readonly resource: Pick<WatchedResource<unknown>, 'protobuf' | 'decode'>
  readonly times: number[]
}

/** The length of a frame comes before it. */
const withoutLength = (frame: Buffer): Buffer => frame.subarray(4)

function listWays(plural: string, resource: WatchedResource<unknown>, make: (i: number) => object): readonly Way[] {
  const numbered = Array.from({ length: objects }, (_, i) => make(i))
  const json = chooseForm(plural, 'application/json')
  const protobuf = chooseForm(plural, 'application/vnd.kubernetes.protobuf')
  const lines = numbered.map((object) => json.writeEvent('ADDED', object).toString())
  const frames = numbered.map((object) => withoutLength(protobuf.writeEvent('ADDED', object)))
  const { readOrdinary: _, ...table } = resource.protobuf
  return [
    { name: 'JSON', messages: lines, resource, times: [] },
    { name: 'protobuf, by the tables', messages: frames, resource: { ...resource, protobuf: table }, times: [] },
    { name: 'protobuf, straight', messages: frames, resource, times: [] },
  ]
}

function run({ messages, resource, times }: Way): void {
  const start = performance.now()
  for (const message of messages) {
    resource.decode(parseEvent(message, resource.protobuf).object)
  }
  times.push(((performance.now() - start) * 1000) / messages.length)
}

const median = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1] as number

function measure(): void {
  const kinds: readonly [string, readonly Way[]][] = [
    ['EndpointSlice of 5 endpoints', listWays('endpointslices', endpointSlices, (i) => slice(i, 5, 0))],
    ['Service', listWays('services', services, service)],
  ]
  for (let i = 0; i < rounds; i++) for (const [, ways] of kinds) for (const way of ways) run(way)
  console.log('| object | way | µs | bytes |\n| --- | --- | ---: | ---: |')
  for (const [kind, ways] of kinds) {
    for (const { name, times, messages } of ways) {
      console.log(`| ${kind} | ${name} | ${median(times).toFixed(1)} | ${messages[0]?.length} |`)
    }
  }
}

if (process.argv[2] === 'measure') measure()
else {
  const bundle = await bundleProgram(import.meta.filename)
  try {
    for (const { name, node } of findOwnPrograms()) {
      console.log(`\n${name}\n`)
      const [program = '', ...flags] = node
      execFileSync(program, [...flags, bundle.file, 'measure'], { stdio: 'inherit' })
    }
  } finally {
    bundle.remove()
  }
}
