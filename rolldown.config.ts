import { defineConfig } from 'rolldown'

// One bundle for both executables: start-up time and memory count on every node.
export default defineConfig({
  input: 'src/main.ts',
  platform: 'node',
  external: ['koffi'],
  output: { file: 'dist/main.js', format: 'esm', minify: false, codeSplitting: false },
})
