// Reads the metadata that all API objects have. Pure.

import { getObject, getString, getStrings, type Json } from './json.ts'

export const metadataOf = (object: Json): Json => getObject(object, 'metadata')
export const nameOf = (object: Json): string => getString(metadataOf(object), 'name')
/** '' for objects without a namespace. */
export const namespaceOf = (object: Json): string => getString(metadataOf(object), 'namespace')
export const uidOf = (object: Json): string => getString(metadataOf(object), 'uid')
export const labelsOf = (object: Json): Json => getObject(metadataOf(object), 'labels')
export const annotationsOf = (object: Json): Json => getObject(metadataOf(object), 'annotations')
export const finalizersOf = (object: Json): readonly string[] => getStrings(metadataOf(object), 'finalizers')

/** True if the object's deletion was requested and waits for a grace period, a finalizer or the namespace's content. */
export const isTerminating = (object: Json): boolean => metadataOf(object).deletionTimestamp !== undefined
