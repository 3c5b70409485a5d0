package retryrmq

import (
	"encoding/json"
	"math"
	"reflect"
	"time"
)

// WorkQueue is what the queue itself is made with when it is missing: a word, or exactly these arguments, none of them if the map is
// empty. A queue that exists is taken as it is. Everybody else who declares the queue must use the same arguments, or is
// refused with 406.
//
//	retryrmq.WorkQueue(retryrmq.Classic)                         // or Quorum, the default: what the broker gives up on is parked
//	retryrmq.WorkQueue(retryrmq.Table{"x-max-priority": 10})     // as its publisher declares it
//	retryrmq.WorkQueue(retryrmq.Existing)                        // never made: without it, Consume returns ErrQueueNotFound
//
// Arguments are strings, whole numbers and booleans; times in them are milliseconds, as RabbitMQ has them. It needs [DLX], except
// with Existing.
func WorkQueue[W ~string | ~map[string]any](what W) Option {
	return func(p *plan) error {
		text, err := workQueueText(reflect.ValueOf(what))
		p.given["work_queue"] = text
		return err
	}
}

// WorkQueueName is a word of [WorkQueue].
type WorkQueueName string

// Existing has a work queue never made.
const Existing WorkQueueName = "existing"

// What every language writes: the word, or a JSON object.
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
		return nil, badOption("`WorkQueue`: the argument %q is a time.Duration; RabbitMQ takes milliseconds, which are %d", head(name),
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
	return nil, badOption("`WorkQueue`: the argument %q must be a string, a whole number of 64 bits, true or false, not a %T", head(name), argument)
}
