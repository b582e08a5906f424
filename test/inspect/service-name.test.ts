import { describe, expect, it } from 'vitest'
import { addNamespace, parseServiceName } from '../../src/inspect/service-name.ts'

describe('names of services', () => {
  it.each([
    ['web', ['default/web'], ''],
    ['shop/web:http', ['shop/web'], 'http'],
    ['svc/web', ['default/web', 'svc/web'], ''],
    ['service/web:80', ['default/web', 'service/web'], '80'],
    ['svc/shop/web', ['shop/web'], ''],
    ['web.shop', ['shop/web'], ''],
    ['web.shop.svc', ['shop/web'], ''],
    ['web.shop.svc.cluster.local:http', ['shop/web'], 'http'],
    ['web.shop.svc.example.org.', ['shop/web'], ''],
  ])('understands %s', (text, keys, port) => {
    expect(parseServiceName(text)).toEqual({ keys, port })
  })

  it.each(['a/b/c', 'Web', 'web-0.web.shop.svc.cluster.local', 'web:', '-web', ''])('refuses "%s"', (text) => {
    expect(() => parseServiceName(text)).toThrow('is none of ADDRESS:PORT, :NODEPORT')
  })

  it('adds a namespace only to a name without one', () => {
    expect(addNamespace('web:http', 'shop')).toBe('shop/web:http')
    expect(addNamespace('svc/web', 'shop')).toBe('shop/web')
    for (const text of ['other/web', '10.0.0.1:80', ':30080', 'web.other.svc'])
      expect(addNamespace(text, 'shop')).toBe(text)
  })
})
