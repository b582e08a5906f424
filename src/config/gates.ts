// Feature gates: which gates exist, which may be changed, and whether a configuration turns one on. Pure.

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

/** Gates that switch every gate of a stage. */
const stageGates = { AllAlpha: 'alpha', AllBeta: 'beta' } as const

/** Returns the first reason why these gates cannot be set, or undefined. */
export function findGateProblem(gates: Readonly<Record<string, boolean>>): string | undefined {
  for (const [name, on] of Object.entries(gates)) {
    if (Object.hasOwn(stageGates, name)) continue
    const gate = known.get(name)
    if (gate === undefined) return `no feature gate of Kubernetes 1.36 is called ${JSON.stringify(name)}`
    if (gate.locked && gate.default !== on) return `${name} is locked to ${gate.default} in Kubernetes 1.36`
  }
  return undefined
}

/** Returns a warning for each gate that a future release will remove. */
export function findGateWarnings(gates: Readonly<Record<string, boolean>>): string[] {
  return Object.entries(gates).flatMap(([name, on]) => {
    const stage = known.get(name)?.stage
    if (stage !== 'ga' && stage !== 'deprecated') return []
    const word = stage === 'ga' ? 'generally available' : 'deprecated'
    return [`feature gate ${name}=${on}: it is ${word}, and a future release will not know it`]
  })
}

/** Returns whether a gate is on. A gate that Kubernetes 1.36 does not have is off. */
export function isFeatureEnabled(
  config: { readonly featureGates: Readonly<Record<string, boolean>> },
  name: string,
): boolean {
  const own = Object.hasOwn(config.featureGates, name) ? config.featureGates[name] : undefined
  if (own !== undefined) return own
  const gate = known.get(name)
  if (gate === undefined) return false
  for (const [name, stage] of Object.entries(stageGates)) {
    const isStageOn = config.featureGates[name]
    if (stage === gate.stage && isStageOn !== undefined && !gate.locked) return isStageOn
  }
  return gate.default
}

/** Returns every gate with its effective value, for the metric `kubernetes_feature_enabled`. */
export function listFeatures(config: {
  readonly featureGates: Readonly<Record<string, boolean>>
}): { name: string; stage: string; enabled: boolean }[] {
  const stages = { alpha: 'ALPHA', beta: 'BETA', ga: '', deprecated: 'DEPRECATED' } as const
  const whole = Object.entries(stageGates).map(([name, stage]) => ({
    name,
    stage: stages[stage],
    enabled: config.featureGates[name] ?? false,
  }))
  const rest = [...known].map(([name, gate]) => ({
    name,
    stage: stages[gate.stage],
    enabled: isFeatureEnabled(config, name),
  }))
  return [...whole, ...rest]
}
