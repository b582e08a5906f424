// Packets and bytes per service port and endpoint in iptables mode.

import { describe } from 'vitest'
import { checkAccounting } from './accounting-checks.ts'

describe('packets and bytes in iptables mode', () => checkAccounting('iptables'))
