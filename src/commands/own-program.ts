// Returns the command line that starts this program again as a child process: the same Node, options and file.

export const ownProgram = (): readonly string[] => [process.execPath, ...process.execArgv, process.argv[1] ?? '']
