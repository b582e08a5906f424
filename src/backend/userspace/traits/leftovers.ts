// Userspace mode finds no leftovers of its own: its sockets end with the process. Removing its chains is in cleanup.ts.

import type { LeftoverTraits } from '../../proxy-mode.ts'
import { cleanupUserspace } from '../cleanup.ts'

export const userspaceLeftovers: LeftoverTraits = { find: async () => [], cleanup: cleanupUserspace }
