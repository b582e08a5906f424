// The Kubernetes release whose behaviour, flags and feature gates this proxy has, and that `--version` prints. Pure.

export const kubernetesVersion = { major: 1, minor: 36, text: 'v1.36.4' } as const
