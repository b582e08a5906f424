// The tiers of tests: `unit` needs only Node; `kernel` needs root and network namespaces; `ipvs` also needs a kernel with IPVS
// (test/vm/run-tier.ts starts one in a VM); `e2e` needs a real API server; `hostile` fuzzes objects, for a short time by
// default; `packages` checks the executable and the manifests that we ship, and
// `packages-long` builds and installs everything, by hand (npm run test:packages); `windows` runs the bundle under Wine; `browser` opens the dashboard in Chromium. See test/README.md.

import { availableParallelism } from 'node:os'
import { defineConfig } from 'vitest/config'
import './test/support/tolerant-source-maps.ts'

export default defineConfig({
  test: {
    projects: [
      {
        test: {
          name: 'unit',
          include: ['test/**/*.test.ts'],
          exclude: [
            'test/kernel/**',
            'test/e2e/**',
            'test/ipvs/**',
            'test/hostile/**',
            'test/packages/**',
            'test/windows/**',
            'test/browser/**',
          ],
          // On two processors, vitest would use one.
          maxWorkers: Math.max(2, availableParallelism() - 1),
          testTimeout: 60_000,
        },
      },
      {
        test: {
          name: 'kernel',
          include: ['test/kernel/**/*.test.ts'],
          // Each file has network namespaces of its own, and mostly waits for packets.
          maxWorkers: 2,
          pool: 'forks',
          testTimeout: 120_000,
          hookTimeout: 120_000,
        },
      },
      {
        test: {
          name: 'ipvs',
          include: ['test/ipvs/**/*.test.ts'],
          fileParallelism: false,
          pool: 'forks',
          isolate: false,
          testTimeout: 300_000,
          hookTimeout: 300_000,
        },
      },
      {
        test: {
          name: 'packages',
          include: ['test/packages/*.test.ts'],
          fileParallelism: false,
          pool: 'forks',
          testTimeout: 120_000,
          hookTimeout: 300_000,
        },
      },
      {
        test: {
          name: 'packages-long',
          include: ['test/packages/long/**/*.test.ts'],
          fileParallelism: false,
          pool: 'forks',
          testTimeout: 600_000,
          hookTimeout: 1_200_000,
        },
      },
      {
        test: {
          name: 'e2e',
          include: ['test/e2e/**/*.test.ts'],
          fileParallelism: false,
          pool: 'forks',
          testTimeout: 120_000,
          hookTimeout: 180_000,
        },
      },
      {
        test: {
          name: 'windows',
          include: ['test/windows/**/*.test.ts'],
          fileParallelism: false,
          pool: 'forks',
          testTimeout: 300_000,
          hookTimeout: 300_000,
        },
      },
      {
        test: {
          name: 'browser',
          include: ['test/browser/**/*.test.ts'],
          fileParallelism: false,
          pool: 'forks',
          testTimeout: 120_000,
          hookTimeout: 120_000,
        },
      },
      {
        test: {
          name: 'hostile',
          include: ['test/hostile/**/*.test.ts'],
          fileParallelism: false,
          pool: 'forks',
          testTimeout: 120_000,
          hookTimeout: 120_000,
        },
      },
    ],
  },
})
