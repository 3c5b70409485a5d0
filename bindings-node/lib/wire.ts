/** The bytes in which messages, outcomes and values pass between the halves. The other side is `src/wire.rs`. */

const NONE = 0xffff_ffff

/** Writes for the native half. @internal */
export class Writer {
  #bytes: Buffer
  #length = 0

  constructor(size = 512) {
    this.#bytes = Buffer.allocUnsafe(size)
  }

  get length(): number {
    return this.#length
  }

  #room(more: number): void {
    const wanted = this.#length + more
    if (wanted <= this.#bytes.length) return
    const larger = Buffer.allocUnsafe(Math.max(wanted, this.#bytes.length * 2))
    this.#bytes.copy(larger, 0, 0, this.#length)
    this.#bytes = larger
  }

  u8(value: number): void {
    this.#room(1)
    this.#length = this.#bytes.writeUInt8(value, this.#length)
  }

  u32(value: number): void {
    this.#room(4)
    this.#length = this.#bytes.writeUInt32LE(value, this.#length)
  }

  i64(value: bigint): void {
    this.#room(8)
    this.#length = this.#bytes.writeBigInt64LE(value, this.#length)
  }

  f64(value: number): void {
    this.#room(8)
    this.#length = this.#bytes.writeDoubleLE(value, this.#length)
  }

  /** A number that may be left out. */
  maybeF64(value: number | undefined): void {
    this.f64(value ?? Number.NaN)
  }

  text(value: string): void {
    const most = value.length * 3
    this.#room(4 + most)
    const length = this.#bytes.write(value, this.#length + 4)
    this.#bytes.writeUInt32LE(length, this.#length)
    this.#length += 4 + length
  }

  /** A text that may be left out. */
  maybe(value: string | undefined): void {
    if (value === undefined) this.u32(NONE)
    else this.text(value)
  }

  bytes(value: Uint8Array): void {
    this.#room(4 + value.byteLength)
    this.#bytes.writeUInt32LE(value.byteLength, this.#length)
    this.#bytes.set(value, this.#length + 4)
    this.#length += 4 + value.byteLength
  }

  /** What was written; valid until the next write. */
  done(): Buffer {
    return this.#bytes.subarray(0, this.#length)
  }

  /** Begins again. */
  clear(): void {
    this.#length = 0
    if (this.#bytes.length > 65_536) this.#bytes = Buffer.allocUnsafe(512)
  }
}

/** Reads what the native half has written. @internal */
export class Reader {
  readonly bytes: Buffer
  at: number

  constructor(bytes: Buffer, at = 0) {
    this.bytes = bytes
    this.at = at
  }

  u8(): number {
    return this.bytes.readUInt8(this.#past(1))
  }

  u32(): number {
    return this.bytes.readUInt32LE(this.#past(4))
  }

  f64(): number {
    return this.bytes.readDoubleLE(this.#past(8))
  }

  /** A 64-bit integer: a number if that is exact, otherwise a bigint. */
  i64(): number | bigint {
    const at = this.#past(8)
    const number = this.bytes.readInt32LE(at + 4) * 0x1_0000_0000 + this.bytes.readUInt32LE(at)
    return Number.isSafeInteger(number) ? number : this.bytes.readBigInt64LE(at)
  }

  text(): string {
    return this.#text(this.u32())
  }

  maybe(): string | undefined {
    const length = this.u32()
    return length === NONE ? undefined : this.#text(length)
  }

  /** A part of the bytes, not a copy. */
  part(length: number): Buffer {
    const at = this.#past(length)
    return this.bytes.subarray(at, at + length)
  }

  /** Skips a text that may be left out. */
  skip(): void {
    const length = this.u32()
    if (length !== NONE) this.at += length
  }

  #text(length: number): string {
    const at = this.#past(length)
    return this.bytes.toString('utf8', at, at + length)
  }

  #past(length: number): number {
    const at = this.at
    this.at += length
    return at
  }
}
