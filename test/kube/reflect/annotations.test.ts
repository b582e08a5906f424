// Sluice's annotations on Services and EndpointSlices are read, or reported and ignored.

import { describe, expect, it } from 'vitest'
import { decodeEndpointSlice } from '../../../src/kube/reflect/decode-endpoint-slice.ts'
import { decodeService } from '../../../src/kube/reflect/decode-service.ts'

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

describe('sluice/weight', () => {
  it('is a number', () => {
    expect(slice({ 'sluice/weight': '5' }).record?.weight).toBe(5)
    expect(slice({ 'sluice/weight': '65535' }).record?.weight).toBe(65_535)
    expect(slice({}).record).not.toHaveProperty('weight')
  })

  it.each(['', '0', '-1', '65536', '1.5', 'many'])('is reported and ignored if it is %j', (text) => {
    const { record, problems } = slice({ 'sluice/weight': text })
    expect(record).not.toHaveProperty('weight')
    expect(problems.map(({ field }) => field)).toEqual(['metadata.annotations[sluice/weight]'])
  })
})
