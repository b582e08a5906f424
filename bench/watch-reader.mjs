// Reads the watch of EndpointSlices, parses each line and does nothing else with it. No proxy written for Node can be cheaper.
//
//   node watch-reader.mjs PORT

import { get } from 'node:http'

const path = '/apis/discovery.k8s.io/v1/endpointslices?watch=true'
let held = ''
get({ host: '127.0.0.1', port: Number(process.argv[2]), path }, (response) => {
  response.setEncoding('utf8').on('data', (text) => {
    const lines = (held + text).split('\n')
    held = lines.pop() ?? ''
    for (const line of lines) JSON.parse(line)
  })
})
