import { defineConfig } from 'rolldown'
import { pageBuild } from './web/page-build.ts'

// One program for both executables, in files that are loaded when they are needed: start-up time and memory count on every node. The page
// of `sluice dashboard` is a bundle of its own, for browsers.
export default defineConfig([
  {
    input: 'src/main.ts',
    platform: 'node',
    external: ['koffi'],
    output: {
      dir: 'dist',
      format: 'esm',
      minify: false,
      entryFileNames: 'main.js',
      chunkFileNames: 'parts/[name]-[hash].js',
    },
  },
  pageBuild('dist/web'),
])
