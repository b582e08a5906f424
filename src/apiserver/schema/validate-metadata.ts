// Validates the metadata that all kinds have; messages are those of the real kube-apiserver. Pure.

import { deepEqual } from '../../lib/equal.ts'
import type { FieldErrors } from './field-errors.ts'
import { getObjects, getString, type Json } from './json.ts'
import { labelNameRules, labelValueRule } from './name-rules.ts'
import { annotationsOf, finalizersOf, isTerminating, labelsOf, metadataOf } from './object-metadata.ts'

const annotationLimit = 256 << 10

export function validateMetadata(object: Json, nameRule: (name: string) => string, errors: FieldErrors): void {
  const metadata = metadataOf(object)
  const name = getString(metadata, 'name')
  if (name === '') errors.required('metadata.name', 'name or generateName is required')
  else errors.checkRule('metadata.name', name, nameRule(name))
  for (const [key, value] of Object.entries(labelsOf(object))) {
    errors.checkRules('metadata.labels', key, labelNameRules(key))
    errors.checkRule('metadata.labels', value, labelValueRule(String(value)))
  }
  let size = 0
  for (const [key, value] of Object.entries(annotationsOf(object))) {
    errors.checkRules('metadata.annotations', key, labelNameRules(key.toLowerCase()))
    size += key.length + String(value).length
  }
  if (size > annotationLimit) errors.tooLong('metadata.annotations', annotationLimit)
  for (const [i, owner] of getObjects(metadata, 'ownerReferences').entries()) {
    for (const field of ['apiVersion', 'kind', 'name', 'uid']) {
      if (getString(owner, field) === '')
        errors.invalid(`metadata.ownerReferences[${i}].${field}`, '', 'must not be empty')
    }
  }
  for (const [i, finalizer] of finalizersOf(object).entries()) {
    errors.checkRules(`metadata.finalizers[${i}]`, finalizer, labelNameRules(finalizer))
  }
}

/** The identity of an object never changes. */
export function validateMetadataChange(object: Json, old: Json, errors: FieldErrors): void {
  const [metadata, oldMetadata] = [metadataOf(object), metadataOf(old)]
  for (const field of ['uid', 'creationTimestamp', 'namespace', 'name', 'deletionTimestamp']) {
    if (metadata[field] !== undefined && !deepEqual(metadata[field], oldMetadata[field])) {
      errors.invalid(`metadata.${field}`, metadata[field], 'field is immutable')
    }
  }
  if (!isTerminating(old)) return
  const before = new Set(finalizersOf(old))
  const added = finalizersOf(object).filter((finalizer) => !before.has(finalizer))
  if (added.length > 0) {
    const list = added.map((each) => `"${each}"`).join(', ')
    errors.forbidden(
      'metadata.finalizers',
      `no new finalizers can be added if the object is being deleted, found new finalizers []string{${list}}`,
    )
  }
}
