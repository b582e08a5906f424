// Packets and bytes per service port and endpoint in nftables mode.

import { describe } from 'vitest'
import { checkAccounting } from './accounting-checks.ts'

describe('packets and bytes in nftables mode', () => checkAccounting('nftables'))
