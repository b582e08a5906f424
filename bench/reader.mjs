// What a change costs a program that does nothing with it: wake up, read the watch, parse the line. No proxy in Node can be below.
//
//   node reader.mjs PORT

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
