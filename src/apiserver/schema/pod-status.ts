// Reads the status of pods, for the endpoint controller and for the columns of `kubectl get`. Pure.

import { getObject, getObjects, getString, type Json } from './json.ts'

export const isPodReady = (pod: Json): boolean =>
  getObjects(getObject(pod, 'status'), 'conditions').some(
    (condition) => condition.type === 'Ready' && condition.status === 'True',
  )

/** True if all containers of the pod have ended for good. */
export const isPodFinished = (pod: Json): boolean =>
  ['Succeeded', 'Failed'].includes(getString(getObject(pod, 'status'), 'phase'))
