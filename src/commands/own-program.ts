// How to start this very program again, as somebody else's child: the same Node, the same options, the same file.

export const ownProgram = (): readonly string[] => [process.execPath, ...process.execArgv, process.argv[1] as string]
