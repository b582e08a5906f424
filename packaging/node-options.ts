// The options of Node and V8 that are in the single executables. bin/kube-proxy has its own in its first line.

/**
 * SIGUSR1 opens no debugger. The options for memory are nearly those of bin/kube-proxy: a small young space, and growth in small steps. An
 * idle V8 collects once, some seconds after the start or later work: without options it would wait for thirty seconds since Node 26, so that
 * memory was returned to the system before (src/daemon/memory-release.ts), and would collect again at once, which frees next to nothing and
 * takes as long. The last ones make V8 compile less, since most of its work for a proxy is in the first second: no baseline code, no
 * code of TurboFan, code of Maglev only for what runs often, and regular expressions as they come (docs/benchmarks.md).
 */
export const nodeOptions: readonly string[] = [
  '--disable-sigusr1',
  '--max-semi-space-size=4',
  '--initial-old-space-size=80',
  '--heap-growing-percent=60',
  '--no-parallel-scavenge',
  '--gc-memory-reducer-start-delay-ms=4000',
  '--memory-reducer-delay-ms=2000',
  '--memory-reducer-gc-count=1',
  '--no-sparkplug',
  '--max-opt=2',
  '--invocation-count-for-maglev=1000',
  '--no-regexp-peephole-optimization',
]
