package native

import "encoding/binary"

// Reader reads what UniFFI wrote: big-endian numbers, a length before texts and lists, a byte before what may be missing.
// After the first thing that cannot be read, everything is zero and End tells.
type Reader struct {
	rest []byte
	bad  bool
}

// NewReader reads b, whose memory the results share.
func NewReader(b []byte) *Reader { return &Reader{rest: b} }

func (r *Reader) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.bad, r.rest = true, nil
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

// Uint8 reads one byte.
func (r *Reader) Uint8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

// Bool reads a flag.
func (r *Reader) Bool() bool { return r.Uint8() != 0 }

// Uint32 reads a number.
func (r *Reader) Uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// Int32 reads a number.
func (r *Reader) Int32() int32 { return int32(r.Uint32()) }

// Uint64 reads a number.
func (r *Reader) Uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// Bytes reads a block.
func (r *Reader) Bytes() []byte { return r.take(int(r.Int32())) }

// String reads a text.
func (r *Reader) String() string { return string(r.Bytes()) }

// Count reads the length of a list.
func (r *Reader) Count() int {
	n := int(r.Int32())
	if n < 0 || n > len(r.rest) {
		r.bad, r.rest = true, nil
		return 0
	}
	return n
}

// OptionalString reads a text that may be missing.
func (r *Reader) OptionalString() string {
	if r.Bool() {
		return r.String()
	}
	return ""
}

// OptionalUint32 reads a number that may be missing.
func (r *Reader) OptionalUint32() (uint32, bool) {
	if r.Bool() {
		return r.Uint32(), true
	}
	return 0, false
}

// OptionalUint64 reads a number that may be missing.
func (r *Reader) OptionalUint64() (uint64, bool) {
	if r.Bool() {
		return r.Uint64(), true
	}
	return 0, false
}

// OptionalBytes reads a block that may be missing.
func (r *Reader) OptionalBytes() []byte {
	if r.Bool() {
		return r.Bytes()
	}
	return nil
}

// End says whether everything could be read and nothing is left.
func (r *Reader) End() error {
	if r.bad || len(r.rest) != 0 {
		return errShort
	}
	return nil
}

// Writer writes what UniFFI reads.
type Writer struct{ B []byte }

// Bool writes a flag.
func (w *Writer) Bool(v bool) {
	if v {
		w.B = append(w.B, 1)
	} else {
		w.B = append(w.B, 0)
	}
}

// Uint8 writes one byte.
func (w *Writer) Uint8(v uint8) { w.B = append(w.B, v) }

// Int32 writes a number.
func (w *Writer) Int32(v int32) { w.B = binary.BigEndian.AppendUint32(w.B, uint32(v)) }

// Uint64 writes a number.
func (w *Writer) Uint64(v uint64) { w.B = binary.BigEndian.AppendUint64(w.B, v) }

// String writes a text.
func (w *Writer) String(v string) {
	w.Int32(int32(len(v)))
	w.B = append(w.B, v...)
}

// Bytes writes a block.
func (w *Writer) Bytes(v []byte) {
	w.Int32(int32(len(v)))
	w.B = append(w.B, v...)
}

// OptionalString writes a text; the empty one is missing.
func (w *Writer) OptionalString(v string) {
	w.Bool(v != "")
	if v != "" {
		w.String(v)
	}
}

// Optional writes whether v is there, and v if it is.
func Optional[T any](w *Writer, v *T, write func(T)) {
	w.Bool(v != nil)
	if v != nil {
		write(*v)
	}
}
