// Runs interruptible work to its end without a pause.

import type { Steps } from '../../src/lib/yielding.ts'

export function runAtOnce<T>(steps: Steps<T>): T {
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
  }
}
