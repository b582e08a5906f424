// The version of Sluice itself. The version of Kubernetes is in kubernetes-version.ts.

import manifest from '../../package.json' with { type: 'json' }

export const sluiceVersion: string = manifest.version
