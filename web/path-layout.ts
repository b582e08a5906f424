// Places the boxes and lines of the picture of a packet's path: from left to right, or from top to bottom on a phone. Pure.

import type { EndpointCandidate, Explanation } from '../src/http/admin.ts'
import { formatShare } from './words.ts'

export interface Box {
  readonly id: string
  readonly x: number
  readonly y: number
  readonly width: number
  readonly height: number
  readonly look: 'client' | 'frontend' | 'policy' | 'endpoint' | 'unused' | 'end'
  readonly lines: readonly string[]
}

export interface Line {
  readonly id: string
  readonly path: string
  /** Between 0 and 1; 0 for a way that is not taken. */
  readonly share: number
  readonly isBusy: boolean
}

export interface Frame {
  readonly x: number
  readonly y: number
  readonly width: number
  readonly height: number
  readonly label: string
}

export interface Picture {
  readonly width: number
  readonly height: number
  readonly boxes: readonly Box[]
  readonly lines: readonly Line[]
  readonly frames: readonly Frame[]
}

/** What an endpoint does now, and words for it. */
export type TrafficOf = (address: string) => { readonly isBusy: boolean; readonly text: string }

const boxHeight = 58
const gap = 14
const frameHead = 24
/** More endpoints are counted, and listed in the table below the picture. */
const maxEndpoints = 10

export function drawPath(explanation: Explanation, traffic: TrafficOf, isNarrow: boolean): Picture {
  const groups = groupEndpoints(explanation)
  const sizes = isNarrow
    ? { boxWidth: 320, endpointWidth: 296, step: boxHeight + 34 }
    : { boxWidth: 206, endpointWidth: 232, step: 206 + 66 }
  const heads = [clientBox(explanation), frontendBox(explanation), policyBox(explanation)]
  const { placed, frames, extent } = placeEndpoints(groups, explanation, traffic, {
    x: isNarrow ? 24 : 3 * sizes.step + 14,
    y: isNarrow ? 3 * sizes.step + frameHead + 4 : frameHead + 10,
    width: sizes.endpointWidth,
  })
  const middle = isNarrow ? 0 : Math.max(8, (extent - boxHeight) / 2)
  const boxes: Box[] = heads.map((head, index) => ({
    ...head,
    x: isNarrow ? 12 : 2 + index * sizes.step,
    y: isNarrow ? 8 + index * sizes.step : middle,
    width: sizes.boxWidth,
    height: boxHeight,
  }))
  const lines = connect(boxes, placed, isNarrow)
  return {
    width: isNarrow ? 344 : 3 * sizes.step + sizes.endpointWidth + 30,
    height: Math.max(extent, isNarrow ? 3 * sizes.step : boxHeight + 16),
    boxes: [...boxes, ...placed.map(({ box }) => box)],
    lines,
    frames,
  }
}

type Head = Pick<Box, 'id' | 'look' | 'lines'>

const origins = { pod: 'a pod of this node', node: 'this node itself', outside: 'outside this node' } as const

const clientBox = ({ packet }: Explanation): Head => ({
  id: 'client',
  look: 'client',
  lines: ['Client', packet.from, origins[packet.origin]],
})

const frontendBox = ({ packet, frontend, service }: Explanation): Head => ({
  id: 'frontend',
  look: 'frontend',
  lines: ['Frontend', `${packet.to}:${packet.port}/${packet.protocol}`, frontend || service || 'not a service'],
})

function policyBox({ verdict, snat, hairpin, affinitySeconds, reason }: Explanation): Head {
  const words = { forward: 'forwarded', reject: 'refused', drop: 'dropped', pass: 'not ours: passed on' }[verdict]
  const sticky = affinitySeconds > 0 ? `, sticky ${affinitySeconds} s` : ''
  const source = sourceWords(snat, hairpin)
  return {
    id: 'policy',
    look: verdict === 'forward' || verdict === 'pass' ? 'policy' : 'end',
    lines: ['Policy', `${words}${sticky}`, verdict === 'forward' ? source : reason],
  }
}

function sourceWords(snat: boolean | null, hairpin: boolean): string {
  if (snat === true) return 'masqueraded as this node'
  if (snat === null) return 'masquerade: see endpoints'
  return hairpin ? 'source kept, except to itself' : 'not masqueraded: source kept'
}

interface Group {
  readonly node: string
  readonly isHere: boolean
  readonly endpoints: readonly EndpointCandidate[]
}

/** The endpoints that may answer come first, and this node before others. */
function groupEndpoints({ endpoints, node }: Explanation): readonly Group[] {
  const shown = [...endpoints].sort((a, b) => b.probability - a.probability).slice(0, maxEndpoints)
  const names = [...new Set(shown.map((endpoint) => endpoint.node))]
  names.sort((a, b) => Number(b === node) - Number(a === node) || (a < b ? -1 : 1))
  return names.map((name) => ({
    node: name,
    isHere: name === node,
    endpoints: shown.filter((endpoint) => endpoint.node === name),
  }))
}

interface Placed {
  readonly box: Box
  readonly endpoint: EndpointCandidate
  readonly isBusy: boolean
}

function placeEndpoints(
  groups: readonly Group[],
  { endpoints }: Explanation,
  traffic: TrafficOf,
  place: { x: number; y: number; width: number },
): { placed: readonly Placed[]; frames: readonly Frame[]; extent: number } {
  const placed: Placed[] = []
  const frames: Frame[] = []
  let y = place.y
  for (const { node, isHere, endpoints: members } of groups) {
    const top = y
    for (const endpoint of members) {
      const { isBusy, text } = traffic(endpoint.address)
      placed.push({ box: endpointBox(endpoint, text, { ...place, y }), endpoint, isBusy })
      y += boxHeight + gap
    }
    const label = isHere ? `this node (${node})` : node || 'node not known'
    frames.push({
      x: place.x - 10,
      y: top - frameHead,
      width: place.width + 20,
      height: y - top + frameHead - 4,
      label,
    })
    y += frameHead + 6
  }
  const rest = endpoints.length - placed.length
  if (rest > 0) {
    const box: Box = {
      id: 'rest',
      ...place,
      y: y - frameHead,
      height: 34,
      look: 'unused',
      lines: [`and ${rest} more, listed below`],
    }
    return { placed: [...placed, { box, endpoint: none, isBusy: false }], frames, extent: y + 24 }
  }
  return { placed, frames, extent: Math.max(y - frameHead + 4, place.y) }
}

const none: EndpointCandidate = { address: '', node: '', probability: 0, snat: null, why: '' }

function endpointBox(
  { address, probability, snat }: EndpointCandidate,
  traffic: string,
  { x, y, width }: { x: number; y: number; width: number },
): Box {
  const share = probability > 0 ? formatShare(probability) : 'not used'
  const source = snat === true && probability > 0 ? ', masqueraded' : ''
  return {
    id: `endpoint ${address}`,
    x,
    y,
    width,
    height: boxHeight,
    look: probability > 0 ? 'endpoint' : 'unused',
    lines: [address, `${share}${source}`, traffic],
  }
}

function connect(heads: readonly Box[], placed: readonly Placed[], isNarrow: boolean): readonly Line[] {
  const [client, frontend, policy] = heads as [Box, Box, Box]
  const isBusy = placed.some((one) => one.isBusy)
  const fixed = [
    [client, frontend],
    [frontend, policy],
  ] as const
  return [
    ...fixed.map(([from, to]) => ({ id: `${from.id} ${to.id}`, path: join(from, to, isNarrow), share: 1, isBusy })),
    ...placed
      .filter(({ box }) => box.id !== 'rest')
      .map(({ box, endpoint, isBusy: busy }) => ({
        id: `policy ${box.id}`,
        path: isNarrow ? joinDown(policy, box) : join(policy, box, false),
        share: endpoint.probability,
        isBusy: busy,
      })),
  ]
}

function join(from: Box, to: Box, isNarrow: boolean): string {
  if (isNarrow) return `M${from.x + from.width / 2} ${from.y + from.height} V${to.y}`
  const [x1, y1, x2, y2] = [from.x + from.width, from.y + from.height / 2, to.x, to.y + to.height / 2]
  const bend = (x2 - x1) / 2
  return `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`
}

/** Along the left edge, and from there into the box. */
const joinDown = (from: Box, to: Box): string =>
  `M${from.x + 4} ${from.y + from.height} V${to.y + to.height / 2 - 8} q0 8 8 8 H${to.x}`
