// A server of a pod as a process of its own, which a test stops or kills: answers every request of HTTP with the given address.

import { createServer } from 'node:net'

const [ip = '', port = ''] = process.argv.slice(2)

createServer((socket) => {
  socket.on('error', () => undefined)
  socket.once('data', () =>
    socket.end(`HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: ${ip.length}\r\n\r\n${ip}`),
  )
}).listen({ host: ip, port: Number(port), backlog: 1024 }, () => process.stdout.write('listening\n'))
