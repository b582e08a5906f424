// The options of Node and V8 that are in the single executables. bin/kube-proxy has its own in its first line.

/**
 * SIGUSR1 opens no debugger. The options for memory are nearly those of bin/kube-proxy: a small young space, and growth in small steps. V8
 * does not reduce the heap by itself when it is idle, since it would forget compiled code that a proxy needs again; instead the proxy begins
 * collections (src/daemon/memory-release.ts). They keep the shapes of objects of which there is none at the moment, and V8 returns free
 * pages after a second. The last ones make V8 compile less, since most of its work for a proxy is in the first second: no baseline code, no
 * code of TurboFan, code of Maglev only for what runs often, and regular expressions as they come (docs/benchmarks.md).
 */
export const nodeOptions: readonly string[] = [
  '--disable-sigusr1',
  '--max-semi-space-size=4',
  '--initial-old-space-size=80',
  '--heap-growing-percent=60',
  '--no-parallel-scavenge',
  '--no-memory-reducer',
  '--retain-maps-for-n-gc=1000000',
  '--memory-pool-timeout=1',
  '--compaction-max-evacuated-bytes-mb-for-reduce-memory=24',
  '--no-sparkplug',
  '--max-opt=2',
  '--invocation-count-for-maglev=1000',
  '--no-regexp-peephole-optimization',
]
