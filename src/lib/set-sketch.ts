// A summary of a set that has a fixed size, and from two of which the difference of their sets can be read if it is small: an invertible
// Bloom lookup table. Pure.
//
// An element is a key and a content, 32 bits each. It is added to three cells: each cell counts its elements and has the exclusive or of
// their keys, contents and checksums. In the difference of two sketches equal elements vanish; a cell with one element left names it, and
// without that element other cells have one left. 96 cells reveal about 50 elements, which are 25 services that changed.

import { mix32 } from './set-hash.ts'

export interface SketchElement {
  readonly key: number
  readonly content: number
}

export interface SketchDifference {
  readonly onlyFirst: readonly SketchElement[]
  readonly onlySecond: readonly SketchElement[]
  /** False if there are more differences than could be read. */
  readonly isComplete: boolean
}

const parts = 3
const cellsPerPart = 32
const cellCount = parts * cellsPerPart
/** 16 bits for the count, 32 for the keys, 32 for the contents, 16 for the checksums. */
const cellBytes = 12
const partSeeds = [0x243f6a88, 0x85a308d3, 0x13198a2e]

export class SetSketch {
  readonly #counts = new Int16Array(cellCount)
  readonly #keys = new Uint32Array(cellCount)
  readonly #contents = new Uint32Array(cellCount)
  readonly #checks = new Uint16Array(cellCount)

  /** Returns undefined if the text is not a sketch. */
  static parse(text: string): SetSketch | undefined {
    const bytes = Buffer.from(text, 'base64')
    if (bytes.length !== cellCount * cellBytes) return undefined
    const sketch = new SetSketch()
    for (let cell = 0; cell < cellCount; cell++) {
      const at = cell * cellBytes
      sketch.#counts[cell] = bytes.readInt16BE(at)
      sketch.#keys[cell] = bytes.readUInt32BE(at + 2)
      sketch.#contents[cell] = bytes.readUInt32BE(at + 6)
      sketch.#checks[cell] = bytes.readUInt16BE(at + 10)
    }
    return sketch
  }

  add(element: SketchElement, sign: 1 | -1 = 1): void {
    for (let part = 0; part < parts; part++) {
      this.#change(part * cellsPerPart + (hash(element, partSeeds[part] as number) % cellsPerPart), element, sign)
    }
  }

  /** Base64. */
  toString(): string {
    const bytes = Buffer.alloc(cellCount * cellBytes)
    for (let cell = 0; cell < cellCount; cell++) {
      const at = cell * cellBytes
      bytes.writeInt16BE(this.#counts[cell] as number, at)
      bytes.writeUInt32BE(this.#keys[cell] as number, at + 2)
      bytes.writeUInt32BE(this.#contents[cell] as number, at + 6)
      bytes.writeUInt16BE(this.#checks[cell] as number, at + 10)
    }
    return bytes.toString('base64')
  }

  /** Returns the elements that one of two sets has and the other has not. */
  compare(other: SetSketch): SketchDifference {
    const rest = this.#minus(other)
    const onlyFirst: SketchElement[] = []
    const onlySecond: SketchElement[] = []
    for (let cell = rest.#findSingle(); cell !== undefined; cell = rest.#findSingle()) {
      const element = { key: rest.#keys[cell] as number, content: rest.#contents[cell] as number }
      const sign = rest.#counts[cell] === 1 ? 1 : -1
      if (sign === 1) onlyFirst.push(element)
      else onlySecond.push(element)
      rest.add(element, sign === 1 ? -1 : 1)
      // Sketches that were not made of sets could go on for ever.
      if (onlyFirst.length + onlySecond.length > cellCount) break
    }
    return { onlyFirst, onlySecond, isComplete: rest.#isEmpty() }
  }

  #change(cell: number, element: SketchElement, sign: number): void {
    this.#counts[cell] = (this.#counts[cell] as number) + sign
    this.#keys[cell] = (this.#keys[cell] as number) ^ element.key
    this.#contents[cell] = (this.#contents[cell] as number) ^ element.content
    this.#checks[cell] = (this.#checks[cell] as number) ^ checkOf(element)
  }

  #minus(other: SetSketch): SetSketch {
    const rest = new SetSketch()
    for (let cell = 0; cell < cellCount; cell++) {
      rest.#counts[cell] = (this.#counts[cell] as number) - (other.#counts[cell] as number)
      rest.#keys[cell] = (this.#keys[cell] as number) ^ (other.#keys[cell] as number)
      rest.#contents[cell] = (this.#contents[cell] as number) ^ (other.#contents[cell] as number)
      rest.#checks[cell] = (this.#checks[cell] as number) ^ (other.#checks[cell] as number)
    }
    return rest
  }

  /** Finds a cell with exactly one element. Several elements that cancel to a count of one have another checksum. */
  #findSingle(): number | undefined {
    for (let cell = 0; cell < cellCount; cell++) {
      const element = { key: this.#keys[cell] as number, content: this.#contents[cell] as number }
      if (Math.abs(this.#counts[cell] as number) === 1 && this.#checks[cell] === checkOf(element)) return cell
    }
    return undefined
  }

  #isEmpty(): boolean {
    return this.#counts.every((count, cell) => count === 0 && this.#keys[cell] === 0 && this.#contents[cell] === 0)
  }
}

const hash = ({ key, content }: SketchElement, seed: number): number => mix32(mix32(key ^ seed) + content)

const checkOf = (element: SketchElement): number => hash(element, 0x03707344) & 0xffff

/** A 32-bit hash of a text, FNV-1a with a better end. `seed` is the hash of what comes before the text. */
export function hashText(text: string, seed = 0x811c9dc5): number {
  let state = seed | 0
  for (let at = 0; at < text.length; at++) state = Math.imul(state ^ text.charCodeAt(at), 0x01000193)
  return mix32(state)
}
