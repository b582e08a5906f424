// The stand-in for netsh accepts exactly what the proxy must say, and nothing that Windows would refuse.

import { describe, expect, it } from 'vitest'
import { addArguments, deleteArguments } from '../../src/backend/userspace/windows/windows-plan.ts'
import { parseNetsh } from './netsh-arguments.ts'

const name = 'vEthernet (HNS Internal NIC)'

describe('the stand-in for netsh', () => {
  it('understands what the proxy says', () => {
    const four = { family: 4, interface: name, ip: '10.96.0.1' }
    const six = { family: 6, interface: name, ip: 'fd00::1' }
    expect(parseNetsh(addArguments(name, '10.96.0.1', 4))).toEqual({ verb: 'add', ...four, bits: 32 })
    expect(parseNetsh(deleteArguments(name, '10.96.0.1', 4))).toEqual({ verb: 'delete', ...four, bits: undefined })
    expect(parseNetsh(addArguments(name, 'fd00::1', 6))).toEqual({ verb: 'add', ...six, bits: 128 })
    expect(parseNetsh(deleteArguments(name, 'fd00::1', 6))).toEqual({ verb: 'delete', ...six, bits: undefined })
  })

  it.each([
    ['interface ipv4 show address', /unknown command/],
    ['interface ipv4 add route name=a address=10.0.0.1', /unknown command/],
    ['interface ipv4 add address address=10.0.0.1 name=a mask=255.255.255.255', /wrong place/],
    ['interface ipv4 add address name=a mask=255.255.255.255', /address is missing/],
    ['interface ipv4 add address name=a address=10.0.0.1', /prefix/],
    ['interface ipv4 add address name=a address=10.0.0.1 mask=255.0.255.0', /prefix/],
    ['interface ipv4 add address name=a address=10.0.0.1 mask=255.255.255.255 store=forever', /store/],
    ['interface ipv4 add address name=a address=fd00::1 mask=255.255.255.255', /address/],
    ['interface ipv6 add address name=a address=fd00::1/128', /unknown tag/],
    ['interface ipv6 add address interface=a address=fd00::1', /address/],
    ['interface ipv6 delete address interface=a address=fd00::1/128', /address/],
  ])('refuses %s', (text, why) => {
    expect(parseNetsh(text.split(' '))).toMatch(why)
  })
})
