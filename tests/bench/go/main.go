// Measures the Go module beside its peers, in alternating rounds on one broker, and prints tables: see run.
//
// Every measurement is a process of its own, on a queue of its own. Nothing is asserted: the machine is whatever it is, and only
// ratios of one run mean anything. RETRYRMQ_BENCH_COUNT, RETRYRMQ_BENCH_RETRIED (messages that fail), RETRYRMQ_BENCH_OUTSTANDING (how
// many of these a client may hold: 200), RETRYRMQ_BENCH_STORM (messages of a storm), RETRYRMQ_BENCH_OUTAGE (its seconds) and
// RETRYRMQ_BENCH_ROUNDS make it shorter.
//
// wagslane/go-rabbitmq is not among the peers: Go's module proxy does not give it out.
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) == 7 && os.Args[1] == "case" {
		count, err := strconv.Atoi(os.Args[6])
		if err != nil {
			log.Fatal(err)
		}
		run, ok := groups[os.Args[2]][os.Args[3]]
		if !ok {
			log.Fatalf("there is no case %s %s", os.Args[2], os.Args[3])
		}
		run(os.Args[4], os.Args[5], count)
		return
	}
	if len(os.Args) == 3 && os.Args[1] == "soak" {
		soak(os.Getenv("RETRYRMQ_URL"), os.Args[2])
		return
	}
	if err := rounds(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// A measured program: consumes count messages of a queue, prints its figures and ends the process.
type program func(url, queue string, count int)

var groups = map[string]map[string]program{
	"consume": {
		"amqp091 ack each":     amqp091Each,
		"amqp091 ack multiple": amqp091Multiple,
		"watermill":            watermillConsume,
		"retryrmq":             retryrmqConsume,
	},
	"batches": {
		"retryrmq":          retryrmqSingles,
		"retryrmq, batches": retryrmqBatches,
	},
	"retry": {
		"amqp091 by hand": asked(amqp091Retry, once),
		"watermill Retry": watermillRetry,
		"retryrmq":        asked(retryrmqLoop, once),
	},
	"storm": {
		"amqp091 requeue":       asked(amqp091Requeue, storm),
		"amqp091 delayed retry": asked(amqp091Delayed, storm),
		"amqp091 by hand":       asked(amqp091Retry, storm),
		"retryrmq":              asked(retryrmqLoop, storm),
		"retryrmq, native":      asked(retryrmqNative, storm),
	},
	"outage": {
		"amqp091 requeue": asked(amqp091Uncounted, newOutage),
		"amqp091 by hand": asked(amqp091Retry, newOutage),
		"retryrmq":        asked(retryrmqLoop, newOutage),
		"retryrmq, pause": asked(retryrmqPause, newOutage),
	},
	"latency": {
		"amqp091":   amqp091Latency,
		"retryrmq":  retryrmqLatency,
		"publisher": publisher,
	},
}

const prefetch = 200

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
