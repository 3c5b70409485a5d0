package retryrmq

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"
	"unicode/utf8"
)

// Table is an AMQP table: the headers of a message, or a value in them.
//
// Every AMQP type has a Go type: bool, int8, uint8, int16, uint16, int32, uint32, int64, float32, float64, [Decimal], string, []byte, time.Time
// (whole seconds), []any, Table and nil. A value that is published with one of these types arrives with the same type. Publishing also takes
// int, uint and uint64, which become 64-bit integers, and map[string]any.
type Table map[string]any

// Decimal is AMQP's decimal number: Value × 10^-Scale.
type Decimal struct {
	Scale uint8
	Value uint32
}

// The deepest nesting; deeper tables are refused.
const maxTableDepth = 32

func appendTable(out []byte, table map[string]any, path string, depth int) ([]byte, error) {
	if depth > maxTableDepth {
		return nil, invalidOption("`%s` is nested more than %d levels deep", path, maxTableDepth)
	}
	var err error
	for name, value := range table {
		if len(name) > math.MaxUint8 {
			return nil, invalidOption("a name in `%s` is longer than 255 bytes: %q…", path, head(name))
		}
		if !utf8.ValidString(name) {
			return nil, invalidOption("a name in `%s` is not valid UTF-8: %q", path, head(name))
		}
		out = append(append(out, byte(len(name))), name...)
		if out, err = appendValue(out, value, path, name, depth); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func appendValue(out []byte, value any, path, name string, depth int) ([]byte, error) {
	be := binary.BigEndian
	switch v := value.(type) {
	case nil:
		return append(out, 'V'), nil
	case bool:
		if v {
			return append(out, 't', 1), nil
		}
		return append(out, 't', 0), nil
	case int8:
		return append(out, 'b', byte(v)), nil
	case uint8:
		return append(out, 'B', v), nil
	case int16:
		return be.AppendUint16(append(out, 's'), uint16(v)), nil
	case uint16:
		return be.AppendUint16(append(out, 'u'), v), nil
	case int32:
		return be.AppendUint32(append(out, 'I'), uint32(v)), nil
	case uint32:
		return be.AppendUint32(append(out, 'i'), v), nil
	case int:
		return be.AppendUint64(append(out, 'l'), uint64(v)), nil
	case int64:
		return be.AppendUint64(append(out, 'l'), uint64(v)), nil
	case uint:
		return appendValue(out, uint64(v), path, name, depth)
	case uint64:
		if v > math.MaxInt64 {
			return nil, invalidOption("`%s[%q]` does not fit AMQP's 64-bit integers; write it as text", path, name)
		}
		return be.AppendUint64(append(out, 'l'), v), nil
	case float32:
		return be.AppendUint32(append(out, 'f'), math.Float32bits(v)), nil
	case float64:
		return be.AppendUint64(append(out, 'd'), math.Float64bits(v)), nil
	case Decimal:
		return be.AppendUint32(append(out, 'D', v.Scale), v.Value), nil
	case string:
		return append(be.AppendUint32(append(out, 'S'), uint32(len(v))), v...), nil
	case []byte:
		return append(be.AppendUint32(append(out, 'x'), uint32(len(v))), v...), nil
	case time.Time:
		if v.Unix() < 0 {
			return nil, invalidOption("`%s[%q]` is before 1970, which AMQP cannot represent", path, name)
		}
		return be.AppendUint64(append(out, 'T'), uint64(v.Unix())), nil
	case Table:
		return appendNested(out, 'F', func(out []byte) ([]byte, error) {
			return appendTable(out, v, path+"["+name+"]", depth+1)
		})
	case map[string]any:
		return appendValue(out, Table(v), path, name, depth)
	case []any:
		if depth > maxTableDepth {
			return nil, invalidOption("`%s` is nested more than %d levels deep", path, maxTableDepth)
		}
		return appendNested(out, 'A', func(out []byte) (_ []byte, err error) {
			for i, entry := range v {
				if out, err = appendValue(out, entry, path+"["+name+"]", fmt.Sprint(i), depth+1); err != nil {
					return nil, err
				}
			}
			return out, nil
		})
	}
	return nil, invalidOption("`%s[%q]` is a %T, which AMQP cannot represent; use a type of retryrmq.Table", path, name, value)
}

func appendNested(out []byte, tag byte, write func([]byte) ([]byte, error)) ([]byte, error) {
	out = append(out, tag, 0, 0, 0, 0)
	at := len(out)
	out, err := write(out)
	if err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint32(out[at-4:], uint32(len(out)-at))
	return out, nil
}

// Reads what the native half wrote; nil if it cannot be read.
func readTable(b []byte) Table {
	table := make(Table)
	r := tableReader{b}
	for len(r.rest) > 0 {
		name := string(r.take(int(r.number(1))))
		table[name] = r.value()
	}
	return table
}

type tableReader struct{ rest []byte }

func (r *tableReader) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.rest = nil
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *tableReader) number(size int) (n uint64) {
	for _, b := range r.take(size) {
		n = n<<8 | uint64(b)
	}
	return n
}

func (r *tableReader) block() []byte { return r.take(int(r.number(4))) }

func (r *tableReader) value() any {
	switch r.number(1) {
	case 't':
		return r.number(1) != 0
	case 'b':
		return int8(r.number(1))
	case 'B':
		return uint8(r.number(1))
	case 's':
		return int16(r.number(2))
	case 'u':
		return uint16(r.number(2))
	case 'I':
		return int32(r.number(4))
	case 'i':
		return uint32(r.number(4))
	case 'l':
		return int64(r.number(8))
	case 'f':
		return math.Float32frombits(uint32(r.number(4)))
	case 'd':
		return math.Float64frombits(r.number(8))
	case 'D':
		return Decimal{Scale: uint8(r.number(1)), Value: uint32(r.number(4))}
	case 'S':
		return string(r.block())
	case 'x':
		return append([]byte{}, r.block()...)
	case 'T':
		return unix(r.number(8))
	case 'F':
		return readTable(r.block())
	case 'A':
		inner := tableReader{r.block()}
		array := []any{}
		for len(inner.rest) > 0 {
			array = append(array, inner.value())
		}
		return array
	}
	return nil
}

// Seconds since 1970 as a time, at most the last one that Go can show.
func unix(seconds uint64) time.Time {
	const farthest = 253_402_300_799 // the end of the year 9999
	return time.Unix(int64(min(seconds, farthest)), 0).UTC()
}
