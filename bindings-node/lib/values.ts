/**
 * AMQP values as JavaScript values, and back, in the bytes of AMQP itself.
 *
 * | AMQP | JavaScript | back |
 * |---|---|---|
 * | `t` boolean | `boolean` | `t` |
 * | all integers | `number`, or `bigint` where a number would not be exact | `l` (64 bits) |
 * | `f`, `d` | `number` | `d` |
 * | `D` decimal | `Decimal` | `D` |
 * | `S` text | `string`, or `Buffer` if it is not UTF-8 | `S` |
 * | `x` bytes | `Buffer` | `x` |
 * | `T` timestamp | `Date`, or `number` past the end of JavaScript's calendar | `T` (whole seconds) |
 * | `A` array | `Array` | `A` |
 * | `F` table | plain object | `F` |
 * | `V` void | `null` | `V` |
 */

import { types } from 'node:util'

import { InvalidOptionError, InvalidTypeError, kind } from './errors.js'
import type { Writer } from './byte_writer.js'

/** The value of a header of a received message. An integer is a number if that is exact, otherwise a bigint. */
export type HeaderValue =
  | string
  | number
  | bigint
  | boolean
  | null
  | Buffer
  | Date
  | Decimal
  | HeaderValue[]
  | { [name: string]: HeaderValue }

/** The headers of a received message. */
export interface Headers {
  [name: string]: HeaderValue
}

/** The value of a header of a published message. `undefined` leaves it out. */
export type HeaderInput =
  | string
  | number
  | bigint
  | boolean
  | null
  | undefined
  | Uint8Array
  | ArrayBuffer
  | Date
  | Decimal
  | readonly HeaderInput[]
  | { readonly [name: string]: HeaderInput }

/** AMQP's decimal: `value` with `scale` places after the point. */
export class Decimal {
  /** All digits, 0 to 4294967295. */
  readonly value: number
  /** How many of them are after the point, 0 to 255. */
  readonly scale: number

  /** `new Decimal(314, 2)` is 3.14. */
  constructor(value: number, scale: number) {
    if (!Number.isInteger(value) || value < 0 || value > 0xffff_ffff) {
      throw new InvalidOptionError(`\`value\` of a decimal must be a whole number from 0 to 4294967295, not ${value}`)
    }
    if (!Number.isInteger(scale) || scale < 0 || scale > 255) {
      throw new InvalidOptionError(`\`scale\` of a decimal must be a whole number from 0 to 255, not ${scale}`)
    }
    this.value = value
    this.scale = scale
  }

  /** As text, exactly. */
  toString(): string {
    if (this.scale === 0) return String(this.value)
    const digits = String(this.value).padStart(this.scale + 1, '0')
    return `${digits.slice(0, -this.scale)}.${digits.slice(-this.scale)}`
  }

  /** As a number, which may not be exact. */
  valueOf(): number {
    return Number(this.toString())
  }

  toJSON(): string {
    return this.toString()
  }
}

/** The end of JavaScript's calendar, in seconds since 1970. */
const END = 8_640_000_000_000

/** The table between these positions. @internal */
export function readTable(bytes: Buffer, at: number, end: number): Headers {
  return new Reader(bytes, at).table(end)
}

/** Seconds since 1970 as a date. @internal */
export function date(seconds: number): Date | number {
  return seconds > END ? seconds : new Date(seconds * 1000)
}

/** A copy with its own memory: others share that of a batch, or Node's pool. */
function own(bytes: Buffer, at: number, end: number): Buffer {
  const copy = Buffer.allocUnsafeSlow(end - at)
  bytes.copy(copy, 0, at, end)
  return copy
}

class Reader {
  readonly #bytes: Buffer
  #at: number

  constructor(bytes: Buffer, at: number) {
    this.#bytes = bytes
    this.#at = at
  }

  table(end: number): Headers {
    const table: Headers = {}
    while (this.#at < end) {
      const from = this.#past(1)
      const at = this.#past(this.#bytes.readUInt8(from))
      const name = this.#bytes.toString('utf8', at, this.#at)
      const value = this.#value()
      // A header may have any name; a plain assignment to this one would set the prototype.
      if (name === '__proto__') {
        Object.defineProperty(table, name, { value, enumerable: true, configurable: true, writable: true })
      } else {
        table[name] = value
      }
    }
    return table
  }

  #value(): HeaderValue {
    const bytes = this.#bytes
    const tag = String.fromCharCode(bytes.readUInt8(this.#past(1)))
    switch (tag) {
      case 'S':
        return this.#text()
      case 'l':
        return this.#long()
      case 'I':
        return bytes.readInt32BE(this.#past(4))
      case 'i':
        return bytes.readUInt32BE(this.#past(4))
      case 's':
        return bytes.readInt16BE(this.#past(2))
      case 'u':
        return bytes.readUInt16BE(this.#past(2))
      case 'b':
        return bytes.readInt8(this.#past(1))
      case 'B':
        return bytes.readUInt8(this.#past(1))
      case 'd':
        return bytes.readDoubleBE(this.#past(8))
      case 'f':
        return bytes.readFloatBE(this.#past(4))
      case 't':
        return bytes.readUInt8(this.#past(1)) !== 0
      case 'V':
        return null
      case 'x': {
        const at = this.#sized()
        return own(bytes, at, this.#at)
      }
      case 'T': {
        const at = this.#past(8)
        return date(bytes.readUInt32BE(at) * 0x1_0000_0000 + bytes.readUInt32BE(at + 4))
      }
      case 'D': {
        const scale = bytes.readUInt8(this.#past(1))
        return new Decimal(bytes.readUInt32BE(this.#past(4)), scale)
      }
      case 'A': {
        const array: HeaderValue[] = []
        const end = this.#end()
        while (this.#at < end) array.push(this.#value())
        return array
      }
      case 'F':
        return this.table(this.#end())
      default:
        throw new Error(`retryrmq: the native half wrote a value of an unknown kind, ${tag}`)
    }
  }

  #text(): string | Buffer {
    const at = this.#sized()
    const text = this.#bytes.toString('utf8', at, this.#at)
    // What is not UTF-8 was replaced by this character, which may also have been there.
    const same = !text.includes('\ufffd') || Buffer.from(text).equals(this.#bytes.subarray(at, this.#at))
    return same ? text : own(this.#bytes, at, this.#at)
  }

  /** A number if that is exact, otherwise a bigint. */
  #long(): number | bigint {
    const at = this.#past(8)
    const number = this.#bytes.readInt32BE(at) * 0x1_0000_0000 + this.#bytes.readUInt32BE(at + 4)
    return Number.isSafeInteger(number) ? number : this.#bytes.readBigInt64BE(at)
  }

  /** Steps over a length and as many bytes, and returns where they begin. */
  #sized(): number {
    return this.#past(this.#bytes.readUInt32BE(this.#past(4)))
  }

  /** Steps over a length, and returns where what it is the length of ends. */
  #end(): number {
    const length = this.#bytes.readUInt32BE(this.#past(4))
    return this.#at + length
  }

  /** Steps over some bytes, and returns where they begin. */
  #past(length: number): number {
    const at = this.#at
    this.#at += length
    return at
  }
}

const LEAST = -(2n ** 63n)
const MOST = 2n ** 63n - 1n
const DEPTH = 32

/** @internal */
export function writeTable(out: Writer, table: object, what: string, depth = 0): void {
  if (depth > DEPTH) throw new InvalidOptionError(`\`${what}\` is nested more than ${DEPTH} levels deep`)
  for (const [name, value] of Object.entries(table) as [string, unknown][]) {
    if (value === undefined) continue
    const length = name.length > 255 ? name.length : Buffer.byteLength(name)
    if (length > 255) {
      throw new InvalidOptionError(`a name in \`${what}\` is longer than 255 bytes: \`${name.slice(0, 40)}…\``)
    }
    out.u8(length)
    out.raw(name)
    writeValue(out, value, `${what}[${JSON.stringify(name)}]`, depth + 1)
  }
}

function tag(out: Writer, letter: string): void {
  out.u8(letter.charCodeAt(0))
}

function writeInteger(out: Writer, value: bigint, what: string): void {
  if (value < LEAST || value > MOST) {
    throw new InvalidOptionError(`\`${what}\` does not fit AMQP's 64-bit integers; write it as text`)
  }
  tag(out, 'l')
  out.i64be(value)
}

function writeLong(out: Writer, letter: string, value: string | Uint8Array): void {
  tag(out, letter)
  const opened = out.open()
  out.raw(value)
  out.close(opened)
}

function writeValue(out: Writer, value: unknown, what: string, depth: number): void {
  switch (typeof value) {
    case 'string':
      return writeLong(out, 'S', value)
    case 'boolean':
      tag(out, 't')
      return out.u8(value ? 1 : 0)
    case 'bigint':
      return writeInteger(out, value, what)
    case 'number':
      if (Number.isSafeInteger(value)) return writeInteger(out, BigInt(value), what)
      if (!Number.isFinite(value)) {
        const why = `is ${value}, which RabbitMQ cannot read; leave it out or write it as text`
        throw new InvalidOptionError(`\`${what}\` ${why}`)
      }
      tag(out, 'd')
      return out.f64be(value)
    case 'object':
      if (value === null) return tag(out, 'V')
      return writeObject(out, value, what, depth)
    default:
      throw wrong(what, value)
  }
}

function writeObject(out: Writer, value: object, what: string, depth: number): void {
  if (types.isDate(value)) {
    tag(out, 'T')
    return out.i64be(BigInt(timestamp(value, what)))
  }
  if (value instanceof Decimal) {
    tag(out, 'D')
    out.u8(value.scale)
    return out.u32be(value.value)
  }
  const bytes = asBytes(value, what)
  if (bytes !== undefined) return writeLong(out, 'x', bytes)
  if (Array.isArray(value)) {
    if (depth > DEPTH) throw new InvalidOptionError(`\`${what}\` is nested more than ${DEPTH} levels deep`)
    tag(out, 'A')
    const opened = out.open()
    // Not with forEach, which skips holes.
    for (let index = 0; index < value.length; index++) writeValue(out, value[index], `${what}[${index}]`, depth + 1)
    return out.close(opened)
  }
  if (!isPlain(value)) throw wrong(what, value)
  tag(out, 'F')
  const opened = out.open()
  writeTable(out, value, what, depth)
  out.close(opened)
}

/** Whether a value is a plain object, of any realm. @internal */
export function isPlain(value: unknown): value is object {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false
  const prototype: unknown = Object.getPrototypeOf(value)
  return prototype === null || Object.getPrototypeOf(prototype) === null
}

/** The type of a value, or the name of its class. @internal */
export function named(value: unknown): string {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return kind(value)
  const { constructor } = value as { readonly constructor?: unknown }
  const name = typeof constructor === 'function' ? constructor.name : ''
  if (typeof name !== 'string' || name === '' || name === 'Object') return 'an object with another prototype'
  return `${/^[AEIOU]/.test(name) ? 'an' : 'a'} ${name}`
}

/** The bytes of a view or a buffer, in any kind of memory. @internal */
export function asBytes(value: unknown, what: string): Uint8Array | undefined {
  const isView = ArrayBuffer.isView(value)
  if (!isView && !types.isAnyArrayBuffer(value)) return undefined
  try {
    return isView ? new Uint8Array(value.buffer, value.byteOffset, value.byteLength) : new Uint8Array(value)
  } catch {
    throw new InvalidTypeError(`\`${what}\` is in memory that was transferred to somebody else`)
  }
}

/** A date as whole seconds since 1970. @internal */
export function timestamp(value: Date, what: string): number {
  const ms = value.getTime()
  // A subclass may answer with anything.
  if (!Number.isFinite(ms) || ms > END * 1000) throw new InvalidOptionError(`\`${what}\` is an invalid date`)
  if (ms < 0) throw new InvalidOptionError(`\`${what}\` is before 1970, which AMQP cannot represent`)
  return Math.floor(ms / 1000)
}

function wrong(what: string, value: unknown): InvalidTypeError {
  return new InvalidTypeError(
    `\`${what}\` must be null, boolean, number, bigint, string, bytes, Date, Decimal, array or plain object, not ${named(value)}`,
  )
}
