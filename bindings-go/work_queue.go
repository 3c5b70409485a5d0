package retryrmq

import (
	"encoding/json"
	"math"
	"reflect"
	"time"
)

// WorkQueue sets how the work queue is created if it is missing: a word, or a map with exactly its arguments, empty for none. An existing queue
// is used as it is; only [DeadLetter] and [Native] compare its arguments. Everyone who declares the queue must use the same arguments; others
// are refused with 406.
//
//	retryrmq.WorkQueue(retryrmq.Classic)                         // or Quorum, the default: messages the broker gives up on are parked
//	retryrmq.WorkQueue(retryrmq.Table{"x-max-priority": 10})     // as its publisher declares it
//	retryrmq.WorkQueue(retryrmq.Existing)                        // never created: if it is missing, Consume returns ErrQueueNotFound
//
// Arguments are strings, whole numbers and booleans. Times in them are in milliseconds, as in RabbitMQ. It needs [DLX], except with Existing.
func WorkQueue[W ~string | ~map[string]any](what W) Option {
	return func(p *plan) error {
		text, err := workQueueText(reflect.ValueOf(what))
		p.given["work_queue"] = text
		return err
	}
}

// WorkQueueName is a word of [WorkQueue].
type WorkQueueName string

// Existing means that the work queue is never created.
const Existing WorkQueueName = "existing"

// The text form, the same in every language: the word, or a JSON object.
func workQueueText(what reflect.Value) (string, error) {
	if what.Kind() == reflect.String {
		return what.String(), checkText("WorkQueue", what.String())
	}
	arguments := map[string]any{}
	for entries := what.MapRange(); entries.Next(); {
		name := entries.Key().String()
		if err := checkText("WorkQueue", name); err != nil {
			return "", err
		}
		argument, err := workQueueArgument(name, entries.Value().Interface())
		if err != nil {
			return "", err
		}
		arguments[name] = argument
	}
	text, err := json.Marshal(arguments)
	return string(text), err
}

func workQueueArgument(name string, argument any) (any, error) {
	v := reflect.ValueOf(argument)
	switch d, isTime := argument.(time.Duration); {
	case isTime:
		return nil, invalidOption("`WorkQueue`: the argument %q is a time.Duration; RabbitMQ takes milliseconds, which are %d", head(name),
			d.Milliseconds())
	case v.Kind() == reflect.String:
		return v.String(), checkText("WorkQueue", v.String())
	case v.Kind() == reflect.Bool:
		return v.Bool(), nil
	case v.CanInt():
		return v.Int(), nil
	case v.CanUint() && v.Uint() <= math.MaxInt64:
		return v.Uint(), nil
	}
	return nil, invalidOption("`WorkQueue`: the argument %q must be a string, a whole number of 64 bits, true or false, not a %T", head(name), argument)
}
