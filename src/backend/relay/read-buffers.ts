// Frees the memory of large reads as soon as their bytes are written, instead of at the next garbage collection.
//
// Node reads 64 KiB at a time from an accepted socket, each time into new memory, and V8 collects it after 32 MB: by then every page is
// cold or returned to the kernel and must be faulted in again. Freed at once, the next read gets the same memory, still in the cache.

/** A smaller buffer is not worth a call. */
const minBytes = 16 * 1024

let discard: InstanceType<typeof MessageChannel>['port1'] | undefined

/** The other end is closed, so a buffer that is sent there is freed at once. Node 20 has no `transfer`, and this is its way to free a buffer. */
function openDiscard(): InstanceType<typeof MessageChannel>['port1'] {
  const { port1, port2 } = new MessageChannel()
  port2.close()
  return port1
}

/** Must be called only when no code reads the chunk any more, and with a chunk that a socket has read: then no other chunk shares its memory. */
export function freeReadBuffer(chunk: Uint8Array): void {
  const { buffer, byteLength } = chunk
  if (byteLength < minBytes || buffer.byteLength !== byteLength || !(buffer instanceof ArrayBuffer)) return
  if (isTransferable(buffer)) buffer.transfer(0)
  else {
    discard ??= openDiscard()
    discard.postMessage(buffer, [buffer])
  }
}

/** An ArrayBuffer since Node 22. */
interface Transferable {
  transfer(bytes: number): unknown
}

const isTransferable = (buffer: object): buffer is Transferable => 'transfer' in buffer
