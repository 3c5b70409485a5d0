/** The bytes in which outcomes and messages to publish pass to the native half. The other side is `src/byte_reader.rs`. */

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

  /** A number in the byte order of AMQP. */
  u32be(value: number): void {
    this.#room(4)
    this.#length = this.#bytes.writeUInt32BE(value, this.#length)
  }

  i64be(value: bigint): void {
    this.#room(8)
    this.#length = this.#bytes.writeBigInt64BE(value, this.#length)
  }

  f64be(value: number): void {
    this.#room(8)
    this.#length = this.#bytes.writeDoubleBE(value, this.#length)
  }

  /** A text or bytes, without their length. */
  raw(value: string | Uint8Array): void {
    if (typeof value === 'string') {
      this.#room(value.length * 3)
      this.#length += this.#bytes.write(value, this.#length)
    } else {
      this.#room(value.byteLength)
      this.#bytes.set(value, this.#length)
      this.#length += value.byteLength
    }
  }

  /** Leaves room for a length in the byte order of AMQP. */
  open(): number {
    this.u32be(0)
    return this.#length
  }

  /** Writes the length of what was written since then. */
  close(opened: number): void {
    this.#bytes.writeUInt32BE(this.#length - opened, opened - 4)
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

/** A whole number of 64 bits; above 2⁵³ the nearest one that a number can be. @internal */
export function u64(bytes: Buffer, at: number): number {
  return bytes.readUInt32LE(at + 4) * 0x1_0000_0000 + bytes.readUInt32LE(at)
}
