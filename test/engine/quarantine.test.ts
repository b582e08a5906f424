import { expect, it } from 'vitest'
import { Quarantine } from '../../src/engine/quarantine.ts'
import { ProxyError } from '../../src/lib/errors.ts'
import { FakeClock } from '../support/fake-clock.ts'

const refused = [{ service: 'ns/a', id: '', error: new ProxyError('plan', 'it cannot be planned') }]
const nothingWaits = () => false

it('keeps a service that was refused again in a sync whose end failed', () => {
  const quarantine = new Quarantine(new FakeClock())
  quarantine.addRefused(refused)
  quarantine.beginRetry('ns/a')
  quarantine.addRefused(refused)
  // The sync fails here. The next one does not try the service, which is not due yet.
  quarantine.endRetries([], nothingWaits)
  expect(quarantine.has('ns/a')).toBe(true)
  quarantine.beginRetry('ns/a')
  quarantine.endRetries([], nothingWaits)
  expect(quarantine.has('ns/a')).toBe(false)
})
