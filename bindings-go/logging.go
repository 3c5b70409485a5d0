package retryrmq

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

var chosen atomic.Pointer[slog.Logger]

// SetLogger has this package log to l, and so all connections of the process; nil silences it. Without it, it logs to
// [slog.Default]. Whether l wants lines below INFO is asked here and by [Dial]. What a handler's failure has to say is logged on the
// handler's goroutine, everything else on one of this package; [Conn.Close] waits for that, five seconds at most.
func SetLogger(l *slog.Logger) {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	chosen.Store(l)
	native.LogLines(true, l.Enabled(context.Background(), slog.LevelDebug))
}

func logger() *slog.Logger {
	if l := chosen.Load(); l != nil {
		return l
	}
	return slog.Default()
}

// As much of a text as a log line needs, and as the record of a parked message keeps.
func short(text string) string {
	const most = 1024
	if len(text) > most {
		return valid(text[:most]) + "…"
	}
	return text
}

// Logs, on a goroutine that people's code may hold up or end. A log handler that panics costs its line.
func say(level slog.Level, message string, attributes ...any) {
	gone := safely(func() { logger().Log(context.Background(), level, message, attributes...) })
	if gone != nil {
		complain.Do(func() { fmt.Fprintln(os.Stderr, "retryrmq: the logger panicked:", short(gone.text())) })
	}
}

var complain sync.Once

// A line for the log.
type line struct {
	level      slog.Level
	message    string
	attributes []any
}

// Lines on their way to the logger from where nobody may wait for people's log handlers: those of the native half above all.
var lines = struct {
	sync.Mutex
	waiting []line
	// How many lines had no room, and how many events.
	lost, missed uint64
	// Closed when nothing waits any more; nil when nobody writes.
	written chan struct{}
}{}

const (
	lineRoom = 1000
	// As long the end waits for people's code that nothing else bounds.
	lastWords = 5 * time.Second
)

func init() {
	native.OnLine = func(l native.Line) {
		attributes := make([]any, 0, len(l.Fields)+2)
		attributes = append(attributes, "room", l.Room)
		for _, field := range l.Fields {
			attributes = append(attributes, short(field))
		}
		sayLater(slog.Level(l.Level), "retryrmq: "+l.Text, attributes...)
	}
	native.OnMissed = warnMissed
}

// As say, without waiting.
func sayLater(level slog.Level, message string, attributes ...any) {
	lines.Lock()
	defer lines.Unlock()
	if len(lines.waiting) < lineRoom {
		lines.waiting = append(lines.waiting, line{level, message, attributes})
	} else {
		lines.lost++
	}
	startWriting()
}

// Says that events were dropped; soon, and once for as many as were.
func warnMissed(count uint64) {
	lines.Lock()
	defer lines.Unlock()
	lines.missed += count
	startWriting()
}

func startWriting() {
	if lines.written == nil {
		lines.written = make(chan struct{})
		go write()
	}
}

// Lets go of the news. Of the last connection, everything is logged after this, unless the logger takes too long.
func release() {
	if !native.Release() {
		return
	}
	lines.Lock()
	written := lines.written
	lines.Unlock()
	if written != nil {
		within(lastWords, written)
	}
}

// Waits for done; false when that takes longer than it may.
func within(limit time.Duration, done <-chan struct{}) bool {
	over := time.NewTimer(limit)
	defer over.Stop()
	select {
	case <-done:
		return true
	case <-over.C:
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// Writes what waits, and ends.
func write() {
	over := false
	defer func() {
		if !over { // a log handler has ended this goroutine: another one takes over
			go write()
		}
	}()
	for {
		lines.Lock()
		waiting, lost, missed := lines.waiting, lines.lost, lines.missed
		lines.lost, lines.missed = 0, 0
		if len(waiting) > 0 {
			lines.waiting = waiting[1:]
		} else if lost == 0 && missed == 0 {
			over = true
			close(lines.written)
			lines.written = nil
			lines.Unlock()
			return
		}
		lines.Unlock()
		if len(waiting) > 0 {
			say(waiting[0].level, waiting[0].message, waiting[0].attributes...)
		}
		if lost > 0 {
			say(slog.LevelWarn, "retryrmq: lines were not logged, because the logger is too slow", "lost", lost)
		}
		if missed > 0 {
			say(slog.LevelWarn, "retryrmq: events were dropped, because their listeners are too slow", "dropped", missed)
		}
	}
}
