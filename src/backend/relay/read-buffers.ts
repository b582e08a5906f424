// Memory of large reads, given back when their bytes are out instead of at some garbage collection.
//
// Node reads 64 KiB at a time from an accepted socket, each time into new memory, and V8 collects it after 32 MB: by then every page is
// cold or gone and must be made anew. Given back at once, the next read gets the same memory, still in the cache.

/** Less than this is not worth a call. */
const least = 16 * 1024

/** Nobody is at the other end, so what is sent there is freed at once: how Node 20, which has no `transfer`, can be told to. */
const { port1: nowhere, port2: closed } = new MessageChannel()
closed.close()

/** To be called when nobody reads the chunk any more. It must come from a socket: then its memory is its own. */
export function freeReadBuffer(chunk: Uint8Array): void {
  const { buffer, byteLength } = chunk
  if (byteLength < least || buffer.byteLength !== byteLength || !(buffer instanceof ArrayBuffer)) return
  if (isTransferable(buffer)) buffer.transfer(0)
  else nowhere.postMessage(buffer, [buffer])
}

/** Since Node 22. */
interface Transferable {
  transfer(bytes: number): unknown
}

const isTransferable = (buffer: object): buffer is Transferable => 'transfer' in buffer
