// Lets a test put programs of its own before the system's in a program under test that runs as another process.

import { programSearch, systemFolders } from '../../src/sys/process/find-program.ts'

/** The environment that makes the program look into the folder first. */
export const folderFirst = (folder: string): NodeJS.ProcessEnv => ({ SLUICE_TEST_FOLDERS: folder })

/** Called by the program under test. */
export function useTestFolders(): void {
  const folder = process.env.SLUICE_TEST_FOLDERS
  if (folder !== undefined) programSearch.folders = [folder, ...systemFolders]
}
