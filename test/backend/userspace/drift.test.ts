// What userspace mode expects of its chains after a write.

import { expect, it } from 'vitest'
import { countUses } from '../../../src/backend/userspace/drift.ts'
import { compose } from '../../../src/backend/userspace/restore.ts'

it('counts the rules in each chain and the hooks that jump to it', () => {
  const texts = ['-A KUBE-PORTALS-HOST -d 172.30.0.41 -j ACCEPT\n-A KUBE-PORTALS-FILTER -d 172.30.0.41 -j REJECT\n']
  const layout = { findOpened: () => undefined, listeners: [], host: '192.168.0.2', nodePorts: new Set<string>() }
  expect(Object.fromEntries(countUses(compose(texts, layout)))).toEqual({
    'nat KUBE-PORTALS-CONTAINER': 1,
    'nat KUBE-PORTALS-HOST': 2,
    'nat KUBE-PORTALS-POSTROUTING': 1,
    'nat KUBE-NODEPORT-CONTAINER': 1,
    'nat KUBE-NODEPORT-HOST': 1,
    'filter KUBE-NODEPORT-NON-LOCAL': 1,
    // Hooked into INPUT, FORWARD and OUTPUT.
    'filter KUBE-PORTALS-FILTER': 4,
  })
})
