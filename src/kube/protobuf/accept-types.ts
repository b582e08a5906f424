// Chooses the types in which the API server may answer, from the settings that kube-proxy has for them.

import { protobufType } from './read-body.ts'

export const jsonType = 'application/json'

export interface ContentTypes {
  /** Empty for the default. */
  readonly acceptContentTypes: string
  readonly contentType: string
}

/** Returns the Accept header of reads. As in client-go, a server that has no protobuf may answer in JSON. */
export function chooseAccept({ acceptContentTypes, contentType }: ContentTypes): string {
  if (acceptContentTypes !== '') return acceptContentTypes
  return contentType === protobufType ? `${protobufType},${jsonType}` : jsonType
}
