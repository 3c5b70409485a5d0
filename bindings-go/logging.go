package retryrmq

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

var chosen atomic.Pointer[slog.Logger]

// SetLogger has this package log to l, and so all connections of the process; nil silences it. Without it, it logs to
// [slog.Default]. Whether l wants lines below INFO is asked here and by [Dial].
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

// Lines of the native half on their way to the logger: what people's log handlers do must not hold up the news.
var lines = struct {
	sync.Mutex
	waiting []native.Line
	missed  uint64
	// Closed when nothing waits any more; nil when nobody writes.
	written chan struct{}
}{}

const lineRoom = 1000

func init() {
	native.OnLine = func(line native.Line) {
		lines.Lock()
		defer lines.Unlock()
		if len(lines.waiting) < lineRoom {
			lines.waiting = append(lines.waiting, line)
		}
		startWriting()
	}
	native.OnMissed = warnMissed
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

// Lets go of the news. Of the last connection, everything is logged after this.
func release() {
	if !native.Release() {
		return
	}
	lines.Lock()
	written := lines.written
	lines.Unlock()
	if written != nil {
		<-written
	}
}

// Writes what waits, and ends.
func write() {
	for {
		lines.Lock()
		waiting, missed := lines.waiting, lines.missed
		lines.waiting, lines.missed = nil, 0
		if len(waiting) == 0 && missed == 0 {
			close(lines.written)
			lines.written = nil
			lines.Unlock()
			return
		}
		lines.Unlock()
		for _, line := range waiting {
			attributes := make([]any, 0, len(line.Fields)+2)
			attributes = append(attributes, "room", line.Room)
			for _, field := range line.Fields {
				attributes = append(attributes, short(field))
			}
			logger().Log(context.Background(), slog.Level(line.Level), "retryrmq: "+line.Text, attributes...)
		}
		if missed > 0 {
			logger().Warn("retryrmq: events were dropped, because their listeners are too slow", "dropped", missed)
		}
	}
}
