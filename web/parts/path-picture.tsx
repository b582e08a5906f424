// The picture of a packet's path: client, frontend, policy, and the endpoints on their nodes, with shares and live traffic.

import { useRef } from 'preact/hooks'
import type { Explanation } from '../../src/http/admin.ts'
import { type Box, drawPath, type Line, type TrafficOf } from '../path-layout.ts'
import { formatShare } from '../words.ts'

export function PathPicture(props: { explanation: Explanation; traffic: TrafficOf; isNarrow: boolean }) {
  const { explanation, traffic, isNarrow } = props
  const scroller = useRef<HTMLDivElement>(null)
  const { width, height, boxes, lines, frames } = drawPath(explanation, traffic, isNarrow)
  return (
    <div class="picture" ref={scroller} tabIndex={0} role="region" aria-label="Picture of the path">
      <svg
        viewBox={`0 0 ${width} ${height}`}
        width={width}
        height={height}
        role="img"
        aria-label={describe(explanation)}
      >
        {frames.map((frame) => (
          <g key={frame.label} class="path-frame">
            <rect x={frame.x} y={frame.y} width={frame.width} height={frame.height} rx={8} />
            <text x={frame.x + 10} y={frame.y + 16}>
              {shorten(frame.label, frame.width - 20)}
            </text>
          </g>
        ))}
        {lines.map((line) => (
          <PathLine key={line.id} line={line} />
        ))}
        {boxes.map((box) => (
          <PathBox key={box.id} box={box} />
        ))}
      </svg>
    </div>
  )
}

const PathLine = ({ line: { path, share, isBusy } }: { line: Line }) => (
  <path
    class={`path-line ${share === 0 ? 'path-line-unused' : ''} ${isBusy && share > 0 ? 'path-line-busy' : ''}`}
    d={path}
    stroke-width={share === 0 ? 1 : 1.5 + 3 * Math.sqrt(share)}
  />
)

function PathBox({ box: { x, y, width, height, look, lines } }: { box: Box }) {
  return (
    <g class={`path-box path-${look}`}>
      <rect x={x} y={y} width={width} height={height} rx={6} />
      {lines.map((text, index) => (
        <text key={index} class={`path-text-${index}`} x={x + 10} y={y + 18 + index * 16.5}>
          {shorten(text, width - 20)}
          <title>{text}</title>
        </text>
      ))}
    </g>
  )
}

/** SVG does not shorten texts by itself; 6.6 is the width of a character of 12 pixels, or a little more. */
function shorten(text: string, width: number): string {
  const characters = Math.floor(width / 6.6)
  return text.length <= characters ? text : `${text.slice(0, characters - 1)}…`
}

function describe({ packet, verdict, service, endpoints }: Explanation): string {
  const used = endpoints.filter(({ probability }) => probability > 0)
  const shares = used
    .slice(0, 10)
    .map(({ address, node, probability }) => `${address} on ${node}: ${formatShare(probability)}`)
  const outcome = verdict === 'forward' ? `forwarded to ${used.length} endpoints` : verdict
  return `A packet from ${packet.from} to ${packet.to} port ${packet.port} of ${service || 'no service'} is ${outcome}. ${shares.join(', ')}`
}
