// The decisions of outlier ejection, over random histories, with a clock that the test passes in.

import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { ConnectionWatch } from '../../../src/engine/outliers/connection-watch.ts'
import type { OutlierSettings } from '../../../src/engine/outliers/endpoint-state.ts'
import { OutlierDetector } from '../../../src/engine/outliers/outlier-detector.ts'

const settings: OutlierSettings = { failures: 3, maxShare: 0.5, intervalMs: 10_000, maxIntervalMs: 300_000 }
const endpoints = (count: number, node = (i: number) => `n${i}`) =>
  Array.from({ length: count }, (_, i) => ({ key: `10.0.0.${i}:80`, node: node(i) }))
const key = (i: number) => `10.0.0.${i}:80`

function makeDetector(count: number, node?: (i: number) => string, given: Partial<OutlierSettings> = {}) {
  const detector = new OutlierDetector({ ...settings, ...given })
  detector.setGroup('g', endpoints(count, node))
  return detector
}

/** Sends connections round robin to the endpoints in use, every `everyMs`, until `end`. Returns when what was ejected. */
function simulate(
  detector: OutlierDetector,
  {
    count,
    start = 0,
    end,
    everyMs,
    answers,
  }: {
    count: number
    start?: number
    end: number
    everyMs: number
    answers: (i: number, now: number) => boolean | 'refused'
  },
): { at: number; keys: readonly string[] }[] {
  const watch = new ConnectionWatch(detector)
  const history: { at: number; keys: readonly string[] }[] = []
  let id = Math.round(start)
  for (let now = start; now < end; now += everyMs) {
    const used = Array.from({ length: count }, (_, i) => i).filter((i) => !detector.ejected('g').has(key(i)))
    const i = used[id % used.length] as number
    const endpoint = key(i)
    watch.opened(++id, endpoint, true, now)
    const answer = answers(i, now)
    if (answer === true) watch.answered(id, endpoint, now)
    else if (answer === 'refused') watch.ended(id, endpoint, now)
    watch.expire(now)
    if (detector.decide(now).length > 0) history.push({ at: now, keys: [...detector.ejected('g').keys()] })
  }
  return history
}

describe('an endpoint that does not answer', () => {
  it('is ejected within 3 seconds, alone, and stays out for growing intervals', () => {
    const detector = makeDetector(4)
    const history = simulate(detector, { count: 4, end: 200_000, everyMs: 50, answers: (i) => i !== 2 })
    expect(history[0]).toEqual({ at: expect.any(Number), keys: [key(2)] })
    expect(history[0]?.at).toBeLessThan(3_000)
    const ejections = history.filter(({ keys }) => keys.length > 0).map(({ at }) => at)
    const trials = history.filter(({ keys }) => keys.length === 0).map(({ at }) => at)
    // 10 s, 20 s, 40 s, 80 s; a trial lasts until one connection was not answered for a second.
    const lengths = trials.map((at, n) => Math.round((at - (ejections[n] as number)) / 1000))
    expect(lengths).toEqual([10, 20, 40, 80].slice(0, lengths.length))
    expect(lengths.length).toBeGreaterThanOrEqual(3)
  })

  it('is ejected when it refuses connections while others answer', () => {
    const detector = makeDetector(2)
    const history = simulate(detector, {
      count: 2,
      end: 5_000,
      everyMs: 100,
      answers: (i) => (i === 0 ? 'refused' : true),
    })
    expect(history[0]?.keys).toEqual([key(0)])
    expect(history[0]?.at).toBeLessThan(3_000)
  })

  it('comes back for good when it answers on trial', () => {
    const detector = makeDetector(4)
    const answers = (i: number, now: number) => i !== 1 || now > 8_000
    const history = simulate(detector, { count: 4, end: 120_000, everyMs: 50, answers })
    expect(history.map(({ keys }) => keys)).toEqual([[key(1)], []])
  })
})

describe('an ejected endpoint that the proxy dials before its trial', () => {
  /** Ejects endpoint 0 of 4 at about 1 s. */
  function eject(given: Partial<OutlierSettings> = {}) {
    const detector = new OutlierDetector({ ...settings, ...given }, { asksFirst: true })
    detector.setGroup('g', endpoints(4))
    simulate(detector, { count: 4, end: 3_000, everyMs: 20, answers: (i) => i !== 0 })
    expect([...detector.ejected('g').keys()]).toEqual([key(0)])
    return detector
  }
  const decideUntil = (detector: OutlierDetector, from: number, to: number) => {
    for (let now = from; now <= to; now += 200) detector.decide(now)
  }

  it('stays out without a change while it does not answer, for growing intervals', () => {
    const detector = eject()
    const asked: number[] = []
    for (let now = 3_000; now < 200_000; now += 200) {
      expect(detector.decide(now)).toEqual([])
      for (const one of detector.takeTrials(8)) {
        asked.push(now)
        detector.tried(one, false, now)
      }
    }
    const distances = asked.slice(1).map((at, i) => Math.round((at - (asked[i] as number)) / 1000))
    expect(distances).toEqual([20, 40, 80])
  })

  it('comes back on trial when it answers, and not before it was asked', () => {
    const detector = eject()
    decideUntil(detector, 3_000, 60_000)
    expect(detector.ejected('g').size).toBe(1)
    expect(detector.takeTrials(8)).toEqual([key(0)])
    expect(detector.takeTrials(8)).toEqual([])
    detector.tried(key(0), true, 60_000)
    expect(detector.decide(60_000)).toEqual(['g'])
    expect(detector.ejected('g').size).toBe(0)
    // It is on trial: one failure ejects it again.
    detector.answered(key(1), 62_000)
    detector.failed(key(0), 'refused', 62_000)
    expect(detector.decide(62_000)).toEqual(['g'])
  })

  it('is left to the clients at the longest interval: it may answer them and not the node', () => {
    const detector = eject({ maxIntervalMs: 10_000 })
    decideUntil(detector, 3_000, 20_000)
    expect(detector.takeTrials(8)).toEqual([])
    expect(detector.ejected('g').size).toBe(0)
  })

  it('is dialled by turns if there are many', () => {
    const detector = eject()
    decideUntil(detector, 3_000, 20_000)
    expect(detector.takeTrials(0)).toEqual([])
    expect(detector.takeTrials(-1)).toEqual([])
    expect(detector.takeTrials(1)).toEqual([key(0)])
  })
})

describe('a node that is cut off', () => {
  it('is ejected as one: also its endpoints that nobody has dialled', () => {
    const detector = makeDetector(6, (i) => (i < 2 ? 'dead' : `n${i}`))
    detector.setGroup('other', [
      { key: '10.9.9.9:80', node: 'dead' },
      { key: key(5), node: 'n5' },
    ])
    const history = simulate(detector, { count: 6, end: 3_000, everyMs: 20, answers: (i) => i >= 2 })
    expect(history[0]?.keys).toEqual([key(0), key(1)])
    expect([...detector.ejected('other').keys()]).toEqual(['10.9.9.9:80'])
    expect(detector.ejected('other').get('10.9.9.9:80')?.why).toBe('no endpoint on node dead answers')
  })

  it('is not ejected while one of its endpoints answers', () => {
    const detector = makeDetector(6, (i) => (i < 3 ? 'half' : `n${i}`))
    simulate(detector, { count: 6, end: 10_000, everyMs: 20, answers: (i) => i !== 0 })
    expect([...detector.ejected('g').keys()]).toEqual([key(0)])
  })
})

type Happening = 'answered' | 'refused' | 'unanswered' | 'decide'

function apply(detector: OutlierDetector, endpoint: string, what: Happening, now: number): void {
  if (what === 'answered') detector.answered(endpoint, now)
  else if (what !== 'decide') detector.failed(endpoint, what, now)
  detector.decide(now)
}

describe('whatever happens', () => {
  const step = fc.record({
    endpoint: fc.nat(5),
    what: fc.constantFrom<Happening>('answered', 'refused', 'unanswered', 'decide'),
    ms: fc.nat(3_000),
  })
  const given = fc.record({ count: fc.integer({ min: 1, max: 6 }), maxShare: fc.constantFrom(0, 0.3, 0.5, 0.9, 1) })

  it('a group never loses more than its share, and never its last endpoint', () => {
    fc.assert(
      fc.property(given, fc.array(step, { maxLength: 300 }), fc.boolean(), ({ count, maxShare }, steps, oneNode) => {
        const detector = makeDetector(count, oneNode ? () => 'n' : undefined, { maxShare })
        let now = 0
        for (const { endpoint, what, ms } of steps) {
          now += ms
          apply(detector, key(endpoint), what, now)
          const out = detector.ejected('g').size
          expect(out).toBeLessThanOrEqual(Math.floor(maxShare * count))
          expect(out).toBeLessThan(count)
        }
      }),
    )
  })

  it('an endpoint that has answered in the last second is not ejected by its own failures', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 200 }), (steps) => {
        const detector = makeDetector(6)
        const answered = new Map<string, number>()
        const isQuiet = (one: string, now: number) => now - (answered.get(one) ?? Number.NEGATIVE_INFINITY) >= 1_000
        let now = 0
        let before: readonly string[] = []
        for (const { endpoint, what, ms } of steps) {
          now += ms
          if (what === 'answered') answered.set(key(endpoint), now)
          apply(detector, key(endpoint), what, now)
          const ejected = [...detector.ejected('g').keys()]
          const added = ejected.filter((one) => !before.includes(one))
          expect(added.filter((one) => !isQuiet(one, now))).toEqual([])
          before = ejected
        }
      }),
    )
  })

  it('with most endpoints failing all are used', () => {
    const detector = makeDetector(4)
    const history = simulate(detector, { count: 4, end: 30_000, everyMs: 50, answers: (i) => i === 3 })
    expect(history.at(-1)?.keys ?? []).toEqual([])
    expect(detector.ejected('g').size).toBe(0)
  })

  it('nobody is ejected if nobody answers', () => {
    const detector = makeDetector(4)
    expect(simulate(detector, { count: 4, end: 30_000, everyMs: 50, answers: () => false })).toEqual([])
  })
})

describe('healthy traffic', () => {
  /** A generator of pseudo-random numbers, so that a failure can be repeated. */
  const makeRandom = (seed: number) => () => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0
    return seed / 2 ** 32
  }

  it.each([5, 50, 500])(
    'an hour with one refusal in a hundred ejects nobody, with a connection every %i ms',
    (everyMs) => {
      const random = makeRandom(42 + everyMs)
      const answers = () => (random() < 0.01 ? ('refused' as const) : true)
      const end = everyMs === 5 ? 600_000 : 3_600_000
      expect(simulate(makeDetector(5), { count: 5, end, everyMs, answers })).toEqual([])
    },
  )

  it('an hour with a slow endpoint, whose application answers late, ejects nobody: its kernel accepts at once', () => {
    expect(simulate(makeDetector(3), { count: 3, end: 3_600_000, everyMs: 100, answers: () => true })).toEqual([])
  })
})

describe('the watch over connections', () => {
  it('counts nothing for connections whose notifications were lost', () => {
    const detector = makeDetector(2)
    const watch = new ConnectionWatch(detector)
    detector.answered(key(1), 5_000)
    for (let id = 0; id < 10; id++) watch.opened(id, key(0), true, 4_000)
    watch.forget()
    watch.expire(6_000)
    expect(detector.decide(6_000)).toEqual([])
  })

  it('remembers only connections to endpoints that are watched', () => {
    const failed: string[] = []
    const watch = new ConnectionWatch({
      has: (endpoint) => endpoint === 'a',
      answered: () => {},
      failed: (endpoint, failure) => failed.push(`${endpoint} ${failure}`),
    })
    for (const [id, endpoint] of ['a', 'b'].entries()) watch.opened(id, endpoint, true, 0)
    watch.ended(7, 'a', 1)
    watch.expire(2_000)
    expect(failed).toEqual(['a unanswered'])
  })
})

it('endpoints of several groups are one endpoint, and are forgotten with their last group', () => {
  const detector = makeDetector(3)
  detector.setGroup('h', endpoints(2))
  detector.dropGroup('g')
  expect([detector.has(key(0)), detector.has(key(2))]).toEqual([true, false])
  detector.dropGroup('h')
  expect(detector.isIdle).toBe(true)
})

describe('a storm', () => {
  const services = 1_000
  const perService = 10
  const keyOf = (service: number, i: number) => `10.${service >> 8}.${service & 255}.${i}:80`

  /** Every endpoint answers for a while and fails for a while, each at times of its own. Returns what decisions looked at and changed. */
  function flap(seconds: number) {
    const detector = new OutlierDetector(settings)
    for (let service = 0; service < services; service++) {
      const own = Array.from({ length: perService }, (_, i) => ({ key: keyOf(service, i), node: `n${i}` }))
      detector.setGroup(`g${service}`, own)
    }
    let changes = 0
    for (let now = 0; now < seconds * 1_000; now += 200) {
      for (let n = 0; n < services * perService; n++) {
        const key = keyOf(Math.floor(n / perService), n % perService)
        const isUp = Math.floor((now + n * 37) / (2_000 + (n % 13) * 300)) % 3 !== 0
        if (isUp) detector.answered(key, now)
        else detector.failed(key, 'refused', now)
      }
      changes += detector.decide(now).length
    }
    return { looked: detector.looked / seconds, changes: changes / seconds }
  }

  it('of 10,000 endpoints that flap costs no more than the budget of decisions', () => {
    const { looked, changes } = flap(60)
    // Five glances per second at each endpoint, 20,000 looks per second, 100 changes per second and 1,000 at once.
    expect(looked).toBeLessThan(50_000 + 20_000 + 1_000)
    expect(changes).toBeLessThan(100 + 1_000 / 60 + 1)
    expect(changes).toBeGreaterThan(10)
  })

  it('a quiet cluster costs nothing, however large', () => {
    const detector = new OutlierDetector(settings)
    for (let service = 0; service < services; service++) {
      detector.setGroup(
        `g${service}`,
        [0, 1, 2].map((i) => ({ key: keyOf(service, i), node: `n${i}` })),
      )
    }
    for (let now = 0; now < 10_000; now += 200) detector.decide(now)
    const before = detector.looked
    for (let now = 10_000; now < 60_000; now += 200) {
      detector.answered(keyOf(3, 1), now)
      detector.decide(now)
    }
    expect(detector.looked - before).toBe(0)
  })

  it('a decision that had to wait is made later', () => {
    const detector = new OutlierDetector(settings)
    const count = 30_000
    const big = Array.from({ length: count }, (_, i) => ({ key: `k${i}`, node: '' }))
    detector.setGroup('big', big)
    detector.setGroup('g', endpoints(4))
    detector.decide(0)
    for (let i = 0; i < count; i++) detector.failed(`k${i}`, 'refused', 0)
    for (let now = 1_000; now < 10_000; now += 200) {
      detector.answered(key(1), now)
      detector.failed(key(0), 'refused', now)
      detector.decide(now)
    }
    expect([...detector.ejected('g').keys()]).toEqual([key(0)])
    expect(detector.ejected('big').size).toBe(0)
  })
})
