import { describe, expect, it } from 'vitest'
import { SlotTable } from '../../../../src/backend/nftables/commit/slot-table.ts'

const endpoints = (count: number): string[] => Array.from({ length: count }, (_, i) => `10.0.0.${i}:80`)

describe.each([
  ['few slots', 5],
  ['many slots', 500],
])('a table of %s', (_, count) => {
  it('has the endpoints that it was given', () => {
    const table = new SlotTable(endpoints(count), count, 0)
    expect(table.present).toEqual(endpoints(count))
    expect(table.size).toBe(count)
  })

  it('keeps later slots when the first ones are replaced', () => {
    const table = new SlotTable(endpoints(count), count, 0)
    table.replaceFirst(['10.1.0.1:80', '10.1.0.2:80'])
    expect(table.present).toEqual(['10.1.0.1:80', '10.1.0.2:80', ...endpoints(count).slice(2)])
    table.replaceFirst(endpoints(count + 1))
    expect(table.present).toEqual(endpoints(count + 1))
  })

  it('loses the retired slots, and no others', () => {
    const table = new SlotTable(endpoints(count), count - 2, 0)
    table.removeRetired()
    expect(table.present).toEqual(endpoints(count - 2))
    table.count = 0
    table.removeRetired()
    expect([table.size, table.present]).toEqual([0, []])
  })
})

it('a list that the caller changes later does not change the table', () => {
  const list = endpoints(500)
  const table = new SlotTable(list, 500, 0)
  list[0] = 'other'
  expect(table.present[0]).toBe('10.0.0.0:80')
})
