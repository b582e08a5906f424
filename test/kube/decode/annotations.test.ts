// Sluice's annotations on Services and EndpointSlices are read, or reported and ignored.

import { describe, expect, it } from 'vitest'
import { decodeEndpointSlice } from '../../../src/kube/decode/decode-endpoint-slice.ts'
import { decodeService } from '../../../src/kube/decode/decode-service.ts'

const service = (annotations: unknown) =>
  decodeService({
    metadata: { namespace: 'ns1', name: 'svc1', annotations },
    spec: { clusterIP: '172.30.0.41', ports: [{ port: 80 }] },
  })

const slice = (annotations: unknown) =>
  decodeEndpointSlice({
    metadata: { namespace: 'ns1', name: 'a', labels: { 'kubernetes.io/service-name': 'svc1' }, annotations },
    addressType: 'IPv4',
    endpoints: [],
    ports: [],
  })

describe('sluice/scheduler', () => {
  it('is kept as given', () => {
    expect(service({ 'sluice/scheduler': 'wlc' }).record?.scheduler).toBe('wlc')
    expect(service({}).record).not.toHaveProperty('scheduler')
    expect(service(undefined).record).not.toHaveProperty('scheduler')
  })

  it.each(['', 'WLC', 'a-b', 'x'.repeat(16), '../rr'])('is reported and ignored if it is %j', (text) => {
    const { record, problems } = service({ 'sluice/scheduler': text })
    expect(record).not.toHaveProperty('scheduler')
    expect(problems.map(({ field }) => field)).toEqual(['metadata.annotations[sluice/scheduler]'])
  })
})

describe('sluice/outlier-ejection', () => {
  it('is on or off, and absent without the annotation', () => {
    expect(service({ 'sluice/outlier-ejection': 'on' }).record?.outlierEjection).toBe(true)
    expect(service({ 'sluice/outlier-ejection': 'off' }).record?.outlierEjection).toBe(false)
    expect(service({}).record).not.toHaveProperty('outlierEjection')
  })

  it.each(['', 'yes', 'ON', 'true'])('is reported and ignored if it is %j', (text) => {
    const { record, problems } = service({ 'sluice/outlier-ejection': text })
    expect(record).not.toHaveProperty('outlierEjection')
    expect(problems.map(({ field }) => field)).toEqual(['metadata.annotations[sluice/outlier-ejection]'])
  })
})

describe('sluice/probe', () => {
  it.each([
    ['tcp', { kind: 'tcp', target: '' }],
    ['http:/healthz?full=1', { kind: 'http', target: '/healthz?full=1' }],
    ['https:/', { kind: 'https', target: '/' }],
    ['grpc', { kind: 'grpc', target: '' }],
    ['grpc:my.pkg.Service', { kind: 'grpc', target: 'my.pkg.Service' }],
    [
      ' http:/ok  interval=5s timeout=250ms failures=2 successes=3 port=web ',
      { kind: 'http', target: '/ok', intervalMs: 5_000, timeoutMs: 250, failures: 2, successes: 3, port: 'web' },
    ],
  ])('reads %j', (text, probe) => {
    expect(service({ 'sluice/probe': text })).toMatchObject({ record: { probe }, problems: [] })
  })

  it.each([
    ...['', 'yes', 'http', 'http:healthz', 'tcp:80', 'grpc:', 'http:/a b', 'tcp interval=0s', 'tcp interval=999ms'],
    ...[
      'tcp timeout=x',
      'tcp failures=0',
      'tcp successes=1.5',
      'tcp port=',
      'tcp retries=3',
      `http:/${'x'.repeat(1024)}`,
    ],
  ])('is reported and ignored if it is %j', (text) => {
    const { record, problems } = service({ 'sluice/probe': text })
    expect(record).not.toHaveProperty('probe')
    expect(problems.map(({ field }) => field)).toEqual(['metadata.annotations[sluice/probe]'])
    expect(problems[0]?.message).toContain('nothing is probed')
  })
})

describe('sluice/weight', () => {
  it('is a number', () => {
    expect(slice({ 'sluice/weight': '5' }).record?.weight).toBe(5)
    expect(slice({ 'sluice/weight': '65535' }).record?.weight).toBe(65_535)
    expect(slice({ 'sluice/weight': '0' }).record?.weight).toBe(0)
    expect(slice({}).record).not.toHaveProperty('weight')
  })

  it.each(['', '-1', '65536', '1.5', 'many'])('is reported and ignored if it is %j', (text) => {
    const { record, problems } = slice({ 'sluice/weight': text })
    expect(record).not.toHaveProperty('weight')
    expect(problems.map(({ field }) => field)).toEqual(['metadata.annotations[sluice/weight]'])
  })
})

it('reads sluice/reset-connections', () => {
  expect(service({ 'sluice/reset-connections': '5s' }).record?.resetConnections).toBe(5_000)
})

describe('sluice/local-drain', () => {
  it.each([
    ['on', 'on'],
    ['off', 'off'],
    ['30s', 30_000],
    ['1h', 3_600_000],
  ])('reads %j', (text, wish) => {
    expect(service({ 'sluice/local-drain': text }).record?.localDrain).toBe(wish)
  })

  it.each(['', 'yes', '0s', '-5s', '61m', '30'])('reports %j and ignores it', (text) => {
    const { record, problems } = service({ 'sluice/local-drain': text })
    expect(record?.localDrain).toBeUndefined()
    expect(problems.map(({ field }) => field)).toEqual(['metadata.annotations[sluice/local-drain]'])
  })
})

describe('sluice/weights', () => {
  it('has weights by address, node and *', () => {
    const { record, problems } = service({ 'sluice/weights': 'node-a=2, 10.1.2.3=0,fd00:0::1 = 7,*=1,' })
    expect(record?.weights).toEqual({ 'node-a': 2, '10.1.2.3': 0, 'fd00::1': 7, '*': 1 })
    expect(problems).toEqual([])
    expect(service({}).record).not.toHaveProperty('weights')
  })

  it('leaves out what is not valid, and names it', () => {
    const { record, problems } = service({
      'sluice/weights': 'node-a=2,node-b,node-c=-1,=3,__proto__=9,a b=1,node-d=65536',
    })
    expect(record?.weights).toEqual({ 'node-a': 2 })
    expect(problems.map(({ field }) => field)).toEqual(new Array(6).fill('metadata.annotations[sluice/weights]'))
    expect(problems[0]?.message).toContain('node-b')
  })

  it('may have node-capacity, alone or beside weights', () => {
    const { record, problems } = service({ 'sluice/weights': 'node-capacity' })
    expect([record?.nodeCapacity, record && 'weights' in record, problems]).toEqual([true, false, []])
    const both = service({ 'sluice/weights': 'node-a=0, node-capacity' })
    expect([both.record?.nodeCapacity, both.record?.weights, both.problems]).toEqual([true, { 'node-a': 0 }, []])
    expect(service({ 'sluice/weights': '*=1' }).record).not.toHaveProperty('nodeCapacity')
    const wrong = service({ 'sluice/weights': 'capacity' })
    expect(wrong.record).not.toHaveProperty('nodeCapacity')
    expect(wrong.problems[0]?.message).toBe(
      'must be node-capacity, or an endpoint address, a node or *, then = and a number from 0 to 65535, in each part; one part is "capacity"',
    )
    // A node may be called so, too.
    expect(service({ 'sluice/weights': 'node-capacity=2' }).record).toMatchObject({ weights: { 'node-capacity': 2 } })
  })

  it('is ignored if no part is valid', () => {
    expect(service({ 'sluice/weights': 'nothing' }).record).not.toHaveProperty('weights')
  })
})

describe('sluice/algorithm', () => {
  it.each(['random', 'round-robin', 'consistent-hash'])('may be %s', (text) => {
    expect(service({ 'sluice/algorithm': text }).record?.algorithm).toBe(text)
  })

  it.each(['', 'rr', 'Random', 'toString'])('is reported and ignored if it is %j', (text) => {
    const { record, problems } = service({ 'sluice/algorithm': text })
    expect(record).not.toHaveProperty('algorithm')
    expect(problems.map(({ field }) => field)).toEqual(['metadata.annotations[sluice/algorithm]'])
  })
})

describe('sluice/slow-start', () => {
  it('is a duration of at most an hour', () => {
    expect(service({ 'sluice/slow-start': '60s' }).record?.slowStartMs).toBe(60_000)
    expect(service({ 'sluice/slow-start': '0' }).record?.slowStartMs).toBe(0)
    expect(service({ 'sluice/slow-start': '1h' }).record?.slowStartMs).toBe(3_600_000)
  })

  it.each(['', '60', '-1s', '61m', 'soon'])('is reported and ignored if it is %j', (text) => {
    const { record, problems } = service({ 'sluice/slow-start': text })
    expect(record).not.toHaveProperty('slowStartMs')
    expect(problems.map(({ field }) => field)).toEqual(['metadata.annotations[sluice/slow-start]'])
  })
})
