// Netlink's wire format: constants, and readers of messages and attributes that copy nothing. Writing is in message-writer.ts. Pure.
//
// A reader must survive any bytes. It checks every length once and keeps the first error. After an error it yields nothing more, so loops
// end by themselves, and the caller looks at `error` once, at the end.
// Headers are in host order. Integers in attributes of netfilter are big endian, those of other families are in host order (`host…`).

export const NLMSG_ERROR = 2
export const NLMSG_DONE = 3
export const NLMSG_OVERRUN = 4

export const NLM_F_REQUEST = 0x1
export const NLM_F_ACK = 0x4
/** In a request: the kernel reports what it changed to the sender too. */
export const NLM_F_ECHO = 0x8
/** In a reply: the table changed during the dump, so entries may be missing or occur twice. */
export const NLM_F_DUMP_INTR = 0x10
export const NLM_F_DUMP = 0x300
export const NLM_F_EXCL = 0x200
export const NLM_F_CREATE = 0x400
export const NLM_F_APPEND = 0x800
/** In an error: only the header of the message at fault is quoted. */
const NLM_F_CAPPED = 0x100
/** In an error or at the end of a dump: attributes follow. */
const NLM_F_ACK_TLVS = 0x200

export const NLA_F_NESTED = 0x8000
export const NLA_F_NET_BYTEORDER = 0x4000
const NLA_TYPE_MASK = 0x3fff

export const HEADER_LENGTH = 16

export const littleEndian = new Uint8Array(Uint16Array.of(1).buffer)[0] === 1

export const align4 = (length: number): number => (length + 3) & ~3

// These functions read byte by byte: Buffer's own methods check the bounds again, which doubles the time of a dump.

function hostU16(bytes: Buffer, at: number): number {
  const first = bytes[at] as number
  const second = bytes[at + 1] as number
  return littleEndian ? first | (second << 8) : (first << 8) | second
}

export function hostU32(bytes: Buffer, at: number): number {
  const first = hostU16(bytes, at)
  const second = hostU16(bytes, at + 2)
  return littleEndian ? first + second * 0x10000 : first * 0x10000 + second
}

/** Reads a big-endian number. */
export function u32At(bytes: Buffer, at: number): number {
  const high = ((bytes[at] as number) << 8) | (bytes[at + 1] as number)
  return high * 0x10000 + (((bytes[at + 2] as number) << 8) | (bytes[at + 3] as number))
}

const hostI32 = (bytes: Buffer, at: number): number => hostU32(bytes, at) | 0

/** Iterates over the messages of one datagram. The fields are those of the message that `next` has found. */
export class MessageReader {
  error: string | undefined
  type = 0
  flags = 0
  sequence = 0
  port = 0
  /** Where the payload starts and ends in `bytes`. */
  start = 0
  end = 0
  readonly bytes: Buffer
  #at: number
  #limit: number

  constructor(bytes: Buffer, start = 0, limit = bytes.length) {
    this.bytes = bytes
    this.#at = start
    this.#limit = limit
  }

  /** Continues with another datagram of the same bytes. */
  reset(start: number, limit: number): this {
    this.error = undefined
    this.#at = start
    this.#limit = limit
    return this
  }

  next(): boolean {
    const at = this.#at
    const left = this.#limit - at
    if (this.error !== undefined || left === 0) return false
    if (left < HEADER_LENGTH) return this.#fail(`${left} bytes left, too few for a message header`)
    const length = hostU32(this.bytes, at)
    if (length < HEADER_LENGTH || length > left) return this.#fail(`message of ${length} bytes where ${left} are left`)
    this.type = hostU16(this.bytes, at + 4)
    this.flags = hostU16(this.bytes, at + 6)
    this.sequence = hostU32(this.bytes, at + 8)
    this.port = hostU32(this.bytes, at + 12)
    this.start = at + HEADER_LENGTH
    this.end = at + length
    this.#at = Math.min(at + align4(length), this.#limit)
    return true
  }

  /** Resets the reader to the attributes of the payload, which start after the `header` bytes of the family. */
  attributes(header: number, reader = new AttributeReader()): AttributeReader {
    return reader.reset(this.bytes, this.start + header, this.end)
  }

  #fail(what: string): boolean {
    this.error = what
    return false
  }
}

/** Iterates over attributes. `enter` descends into the current attribute, and `leave` returns to the position after it. */
export class AttributeReader {
  /** The first error. */
  error: string | undefined
  /** The type of the current attribute, without flags. */
  type = 0
  /** Where the payload of the current attribute starts and ends. */
  start = 0
  end = 0
  bytes: Buffer = Buffer.alloc(0)
  #next = 0
  #limit = 0
  /** Next position and limit of each level that was left by `enter`. */
  readonly #stack: number[] = []
  #depth = 0

  reset(bytes: Buffer, start: number, limit: number): this {
    this.bytes = bytes
    this.error = undefined
    this.#depth = 0
    this.#next = start
    this.#limit = limit
    this.type = 0
    this.start = this.end = start
    if (start > limit || limit > bytes.length) this.fail('message too short for its header')
    return this
  }

  next(): boolean {
    const at = this.#next
    const left = this.#limit - at
    if (left <= 0 || this.error !== undefined) return false
    if (left < 4) return this.fail(`${left} bytes left, too few for an attribute`)
    const length = hostU16(this.bytes, at)
    if (length < 4 || length > left) return this.fail(`attribute of ${length} bytes where ${left} are left`)
    this.type = hostU16(this.bytes, at + 2) & NLA_TYPE_MASK
    this.start = at + 4
    this.end = at + length
    this.#next = at + align4(length)
    return true
  }

  get length(): number {
    return this.end - this.start
  }

  enter(): void {
    this.#stack[this.#depth++] = this.#next
    this.#stack[this.#depth++] = this.#limit
    this.#next = this.start
    this.#limit = this.error === undefined ? this.end : this.start
  }

  leave(): void {
    if (this.#depth < 2) throw new RangeError('leave without enter')
    this.#limit = this.#stack[--this.#depth] as number
    this.#next = this.#stack[--this.#depth] as number
  }

  u8(): number {
    return this.#has(1) ? (this.bytes[this.start] as number) : 0
  }

  u16(): number {
    return this.#has(2) ? ((this.bytes[this.start] as number) << 8) | (this.bytes[this.start + 1] as number) : 0
  }

  u32(): number {
    return this.#has(4) ? u32At(this.bytes, this.start) : 0
  }

  i32(): number {
    return this.u32() | 0
  }

  /** Exact up to 2^53. Handles and times stay below that. */
  u64(): number {
    return this.#has(8) ? Number(this.bytes.readBigUInt64BE(this.start)) : 0
  }

  hostU32(): number {
    return this.#has(4) ? hostU32(this.bytes, this.start) : 0
  }

  hostU16(): number {
    return this.#has(2) ? hostU16(this.bytes, this.start) : 0
  }

  /** The text up to the first NUL. */
  text(): string {
    if (this.error !== undefined) return ''
    let end = this.start
    while (end < this.end && this.bytes[end] !== 0) end++
    return this.bytes.toString('utf8', this.start, end)
  }

  /** True if the text begins with this one, which is ASCII. Costs less than `text`. */
  startsWith(text: string): boolean {
    if (this.error !== undefined || this.length < text.length) return false
    for (let i = 0; i < text.length; i++) if (this.bytes[this.start + i] !== text.charCodeAt(i)) return false
    return true
  }

  /** True if the text is this one, which is ASCII. Costs less than `text`. */
  is(text: string): boolean {
    if (!this.startsWith(text)) return false
    return this.length === text.length || this.bytes[this.start + text.length] === 0
  }

  /** A copy of the payload. */
  raw(): Buffer {
    if (this.error !== undefined) return Buffer.alloc(0)
    const { bytes, start, length } = this
    const copy = Buffer.allocUnsafe(length)
    // For a hundred thousand keys and addresses a subarray, which is an object of its own, costs more than copying the bytes.
    for (let i = 0; i < length; i++) copy[i] = bytes[start + i] as number
    return copy
  }

  /** Records an error, also for callers that find the contents wrong. Returns false, for `return reader.fail(…)`. */
  fail(what: string): false {
    this.error ??= what
    return false
  }

  #has(length: number): boolean {
    if (this.error !== undefined) return false
    return this.length >= length || this.fail(`attribute ${this.type} has ${this.length} bytes, needs ${length}`)
  }
}

/** The kernel's answer to a message. errno 0 is an acknowledgement. */
export interface NetlinkAnswer {
  readonly errno: number
  /** The kernel's own description of the error; '' if there is none. */
  readonly text: string
  /** The position of the attribute at fault in the message; -1 if the kernel does not state it. */
  readonly offset: number
  /** The type of the message that this answers. */
  readonly about: number
}

/** NLMSGERR_ATTR_MSG and NLMSGERR_ATTR_OFFS. */
const NLMSGERR_ATTR = { MSG: 1, OFFS: 2 } as const

/** Reads the payload of NLMSG_ERROR, or of the NLMSG_DONE of a dump, which quotes no message. */
export function decodeAnswer(message: MessageReader): NetlinkAnswer {
  const { bytes, start, end, flags } = message
  if (end - start < 4) return { errno: 0, text: '', offset: -1, about: 0 }
  const errno = Math.abs(hostI32(bytes, start))
  let at = start + 4
  let about = 0
  if (message.type === NLMSG_ERROR) {
    if (end - at < HEADER_LENGTH) return { errno, text: '', offset: -1, about }
    about = hostU16(bytes, at + 4)
    const quoted = flags & NLM_F_CAPPED || errno === 0 ? HEADER_LENGTH : hostU32(bytes, at)
    at += quoted <= end - at ? align4(quoted) : end - at
  }
  let text = ''
  let offset = -1
  if (flags & NLM_F_ACK_TLVS && at <= end) {
    const reader = new AttributeReader().reset(bytes, at, end)
    while (reader.next()) {
      if (reader.type === NLMSGERR_ATTR.MSG) text = reader.text()
      else if (reader.type === NLMSGERR_ATTR.OFFS) offset = reader.hostU32()
    }
  }
  return { errno, text, offset, about }
}
