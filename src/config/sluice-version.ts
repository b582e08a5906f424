// The version of this product; the Kubernetes version it stands in for is in config/kubernetes-version.ts.

import manifest from '../../package.json' with { type: 'json' }

export const sluiceVersion: string = manifest.version
