// Long work in short stretches: a walk pauses now and then, and whoever drives it lets others have a turn. Stretches are counted, not timed.

/** Work that pauses by `yield`. What it works on must be whole again at every pause. */
export type Walk<T> = Generator<void, T, void>

/** To the end without a pause, for those who do not mind. */
export function finish<T>(walk: Walk<T>): T {
  for (;;) {
    const step = walk.next()
    if (step.done === true) return step.value
  }
}

/** To the end, with `breathe` at every pause. What has no pause is done at once, without a promise. */
export function stroll<T>(walk: Walk<T>, breathe: () => Promise<void>): T | Promise<T> {
  const step = walk.next()
  return step.done === true ? step.value : strollOn(walk, breathe)
}

async function strollOn<T>(walk: Walk<T>, breathe: () => Promise<void>): Promise<T> {
  for (;;) {
    await breathe()
    const step = walk.next()
    if (step.done === true) return step.value
  }
}
