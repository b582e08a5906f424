// The content types of patches. Pure.

export const applyPatchType = 'application/apply-patch+yaml'
export const patchTypes = [
  'application/json-patch+json',
  'application/merge-patch+json',
  'application/strategic-merge-patch+json',
  applyPatchType,
]
