// Feeds client-go's rest_client_* metrics from the requests of the API client.

import type { MetricsRegistry } from '../registry/metrics-registry.ts'

interface MeasuredRequest {
  readonly verb: string
  readonly host: string
  /** HTTP status, or `<error>` if there was no answer. */
  readonly code: string
  readonly durationMs: number
  readonly requestBytes: number
  readonly responseBytes: number
  /** A stream: client-go counts it, and measures neither its time nor its size. */
  readonly watch?: boolean
}

/** Returns the observer for the API client. */
export function recordRequests(registry: MetricsRegistry) {
  return {
    request({ verb, host, code, durationMs, requestBytes, responseBytes, watch }: MeasuredRequest): void {
      registry.add('rest_client_requests_total', { code, method: verb, host })
      if (watch) return
      registry.observe('rest_client_request_duration_seconds', { verb, host }, durationMs / 1000)
      registry.observe('rest_client_request_size_bytes', { verb, host }, requestBytes)
      registry.observe('rest_client_response_size_bytes', { verb, host }, responseBytes)
    },
    throttled(verb: string, host: string, ms: number): void {
      registry.observe('rest_client_rate_limiter_duration_seconds', { verb, host }, ms / 1000)
    },
    retried(verb: string, host: string, code: string): void {
      registry.add('rest_client_request_retries_total', { code, verb, host })
    },
    /** Called when a client has made its pool of connections. */
    connected(): void {
      registry.add('rest_client_transport_create_calls_total', { result: 'miss' })
      registry.set('rest_client_transport_cache_entries', {}, 1)
    },
    /** Called when an exec credential plugin has run. */
    plugin(exitCode: number, status: string): void {
      registry.add('rest_client_exec_plugin_call_total', { code: String(exitCode), call_status: status })
    },
  }
}
