// The words for what became of a flow: it is open, or how it ended. Pure.

/**
 * `closed`: both sides closed it. `reset`: one side broke it off. `refused`: the endpoint refused it. `timed-out`: no reply came.
 * `expired`: nothing was sent for so long that it was forgotten; UDP flows end so. `rejected`, `dropped`: a rule did it, or a relay.
 */
export const flowVerdicts = [
  'open',
  'closed',
  'reset',
  'refused',
  'timed-out',
  'expired',
  'rejected',
  'dropped',
] as const

export type FlowVerdict = (typeof flowVerdicts)[number]
