// HTTP proxies between this node and the API server: chooses the proxy, and opens tunnels through it.

import { type ClientRequest, Agent as HttpAgent, request as httpRequest } from 'node:http'
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https'
import type { Duplex } from 'node:stream'
import { ProxyError } from '../lib/errors.ts'
import { canonicalIp, contains, hostPort, isLoopback, parseCidr } from '../lib/ip.ts'

/** The host of a URL without the brackets of IPv6. */
export const getHost = (url: URL): string => url.hostname.replace(/^\[|\]$/g, '')

export const getPort = (url: URL): number => Number(url.port) || (url.protocol === 'https:' ? 443 : 80)

/** Parses the URL of a proxy. Throws an error with the reason if it cannot be used. */
export function parseProxy(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (url === undefined || url.hostname === '') throw new Error(`is not a valid URL: ${JSON.stringify(text)}`)
  if (url.protocol === 'http:' || url.protocol === 'https:') return url
  throw new Error(`only http and https proxies are supported, not ${url.protocol.replace(':', '')}`)
}

/** Returns the proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY choose for a server. kubeadm passes these variables to its pods. */
export function findEnvironmentProxy(server: URL, env: NodeJS.ProcessEnv): URL | undefined {
  const read = (name: string) => env[name] || env[name.toLowerCase()] || ''
  const text = read(server.protocol === 'https:' ? 'HTTPS_PROXY' : 'HTTP_PROXY')
  if (text === '' || isBypassed(server, read('NO_PROXY'))) return undefined
  return parseProxy(text.includes('://') ? text : `http://${text}`)
}

function isBypassed(server: URL, noProxy: string): boolean {
  const host = getHost(server).toLowerCase()
  const ip = canonicalIp(host)
  if (host === 'localhost' || (ip !== undefined && isLoopback(ip))) return true
  return noProxy.split(',').some((part) => {
    const rule = part.trim().toLowerCase()
    if (rule === '') return false
    if (rule === '*' || rule === host || rule === hostPort(host, getPort(server))) return true
    if (ip === undefined) return host.endsWith(rule.startsWith('.') ? rule : `.${rule.replace(/^\*\./, '')}`)
    const cidr = parseCidr(rule)
    return cidr === undefined ? canonicalIp(rule) === ip : contains(cidr, ip)
  })
}

/** Opens a raw connection to `host:port` through the proxy. `observe` gets the agent that dials the proxy. */
export function openTunnel(
  proxy: URL,
  host: string,
  port: number,
  observe: <A extends HttpAgent>(agent: A) => A,
): Promise<Duplex> {
  const target = hostPort(host, port)
  const failed = (reason: string, cause?: unknown) =>
    new ProxyError('connection', `proxy ${proxy.host} did not connect to ${target}: ${reason}`, { cause })
  return new Promise((resolve, reject) => {
    const request: ClientRequest = (proxy.protocol === 'https:' ? httpsRequest : httpRequest)({
      host: getHost(proxy),
      port: getPort(proxy),
      method: 'CONNECT',
      path: target,
      headers: { host: target, ...makeProxyAuthorization(proxy) },
      agent: observe(proxy.protocol === 'https:' ? new HttpsAgent() : new HttpAgent()),
    })
    request.once('error', (error) => reject(failed(error.message, error)))
    request.once('response', (response) => {
      request.destroy()
      reject(failed(`it answered ${response.statusCode} ${response.statusMessage}`))
    })
    request.once('connect', (response, socket, head) => {
      if (response.statusCode !== 200 || head.length > 0) {
        socket.destroy()
        reject(failed(`it answered ${response.statusCode} ${response.statusMessage}`))
      } else resolve(socket)
    })
    request.end()
  })
}

export function makeProxyAuthorization(proxy: URL): Record<string, string> {
  if (proxy.username === '') return {}
  const pair = `${decodeURIComponent(proxy.username)}:${decodeURIComponent(proxy.password)}`
  return { 'proxy-authorization': `Basic ${Buffer.from(pair).toString('base64')}` }
}
