// Feature gates: which exist, which may be changed, and what a configuration makes of them.

import { type GateGroup, gateGroups } from './gate-names.ts'

type Gate = Omit<GateGroup, 'names'>

const known: ReadonlyMap<string, Gate> = new Map(
  gateGroups.flatMap(({ names, ...gate }) =>
    names
      .trim()
      .split(/\s+/)
      .map((name) => [name, gate] as const),
  ),
)

/** Gates that stand for all others of a stage. */
const wholeStages = { AllAlpha: 'alpha', AllBeta: 'beta' } as const

export const gateNames: readonly string[] = [...Object.keys(wholeStages), ...known.keys()].sort()

/** The first reason why these gates cannot be set, or undefined. */
export function gateProblem(gates: Readonly<Record<string, boolean>>): string | undefined {
  for (const [name, on] of Object.entries(gates)) {
    if (Object.hasOwn(wholeStages, name)) continue
    const gate = known.get(name)
    if (gate === undefined) return `no feature gate of Kubernetes 1.36 is called ${JSON.stringify(name)}`
    if (gate.locked && gate.default !== on) return `${name} is locked to ${gate.default} in Kubernetes 1.36`
  }
  return undefined
}

/** Remarks on gates that are set although they are on their way out. */
export function gateWarnings(gates: Readonly<Record<string, boolean>>): string[] {
  return Object.entries(gates).flatMap(([name, on]) => {
    const stage = known.get(name)?.stage
    if (stage !== 'ga' && stage !== 'deprecated') return []
    const word = stage === 'ga' ? 'generally available' : 'deprecated'
    return [`feature gate ${name}=${on}: it is ${word}, and a future release will not know it`]
  })
}

/** Whether a gate is on. A gate that Kubernetes 1.36 does not know is off. */
export function featureEnabled(
  config: { readonly featureGates: Readonly<Record<string, boolean>> },
  name: string,
): boolean {
  const own = Object.hasOwn(config.featureGates, name) ? config.featureGates[name] : undefined
  if (own !== undefined) return own
  const gate = known.get(name)
  if (gate === undefined) return false
  for (const [all, stage] of Object.entries(wholeStages)) {
    const whole = config.featureGates[all]
    if (stage === gate.stage && whole !== undefined && !gate.locked) return whole
  }
  return gate.default
}

/** Every gate with its effective value, for the `kubernetes_feature_enabled` metric. */
export function featureStates(config: {
  readonly featureGates: Readonly<Record<string, boolean>>
}): { name: string; stage: string; enabled: boolean }[] {
  const stages = { alpha: 'ALPHA', beta: 'BETA', ga: '', deprecated: 'DEPRECATED' } as const
  const whole = Object.entries(wholeStages).map(([name, stage]) => ({
    name,
    stage: stages[stage],
    enabled: config.featureGates[name] ?? false,
  }))
  const rest = [...known].map(([name, gate]) => ({
    name,
    stage: stages[gate.stage],
    enabled: featureEnabled(config, name),
  }))
  return [...whole, ...rest]
}
