package retryrmq

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retryrmq/retryrmq/bindings-go/internal/native"
)

// SetLogger sets the logger of this package, for all connections of the process without a [Logger] of their own; nil turns logging off. The
// default is [slog.Default]. SetLogger and [Dial] ask l which levels it wants; a level that changes later is noticed a moment later. The stack of
// a handler's failure, at DEBUG, is logged on the handler's goroutine, everything else on a goroutine of this package; [Conn.Close] waits for that
// for at most five seconds.
//
// Lines have attributes. A line about an attempt has queue, attempt, and message_id if the message has one; if the attempt failed, also error. The
// two lines about a failure, that of the native half and the one at DEBUG with the stack, have error_type if the error has a type. That of the native
// half has next_step as well: retried, handed_over, parked, dropped, rejected, deferred, or lost if the connection was lost. Other lines have what they
// are about, mostly queue. module names the part of the native half that a line is from: attempt, connection, consumer, and so on. Names are the same
// in every language.
func SetLogger(l *slog.Logger) {
	l = loggerOrSilent(l)
	least := leastWanted(l)
	asyncLoggers.Lock()
	defer asyncLoggers.Unlock()
	defaultLogger.chosen.Store(l)
	if entry := asyncLoggers.open[nil]; entry != nil {
		entry.least.Store(int64(least))
		wantLines()
	}
}

// Logger sets the logger of one connection, instead of that of [SetLogger]; nil turns its logging off. Lines of the native half, such as those
// about failed attempts and lost connections, go to the loggers of all open connections, once to each logger.
func Logger(l *slog.Logger) DialOption { return func(d *dialOptions) { d.logger = loggerOrSilent(l) } }

var silent = slog.New(slog.DiscardHandler)

func loggerOrSilent(l *slog.Logger) *slog.Logger {
	if l == nil {
		return silent
	}
	return l
}

// A logger, and the lines that wait for it. Some goroutines must not wait for log handlers, which are user code.
type asyncLogger struct {
	chosen atomic.Pointer[slog.Logger]
	// The least level that the logger wants, as far as is known.
	least atomic.Int64

	mu      sync.Mutex
	waiting []logLine
	// How many lines had no room, and how many events.
	lost, dropped uint64
	// Closed when no line waits any more; nil if no goroutine writes.
	written chan struct{}
}

// A line for the log.
type logLine struct {
	level      slog.Level
	message    string
	attributes []any
}

// The logger of the package, for connections without a logger of their own.
var defaultLogger asyncLogger

// The loggers of connections, by the `slog.Logger` below, with the number of connections; nil stands for the package's.
var asyncLoggers = struct {
	sync.Mutex
	open map[*slog.Logger]*loggerEntry
}{open: map[*slog.Logger]*loggerEntry{}}

type loggerEntry struct {
	*asyncLogger
	connections int
}

const (
	maxLogLines = 1000
	// How long the end waits for user code that has no other limit.
	userCodeTimeout = 5 * time.Second
)

func init() {
	native.OnLine = func(l native.Line) {
		attributes := make([]any, 0, len(l.Fields)/2+1)
		attributes = append(attributes, slog.String("module", l.Module))
		for i := 1; i < len(l.Fields); i += 2 {
			attributes = append(attributes, attribute(l.Fields[i-1], l.Fields[i]))
		}
		text := "retryrmq: " + l.Text
		// Lines about attempts quote errors and ids. In other lines the names of queues are fields.
		if l.Module != "attempt" && !strings.HasPrefix(l.Text, "attempt ") {
			text = "retryrmq: " + goOptions.Replace(l.Text)
		}
		for _, j := range openLoggers() {
			j.logLater(slog.Level(l.Level), text, attributes...)
		}
	}
	native.OnMissed = func(count uint64) {
		for _, j := range openLoggers() {
			j.warnOfDropped(count)
		}
	}
}

// The fields of the native half that are numbers. All others are text, even if a queue is called 7.
var numbers = []string{"attempt", "channels", "count", "crashes", "dropped", "tasks", "tries"}

// An attribute for a field of the native half, which gives text.
func attribute(name, value string) slog.Attr {
	if slices.Contains(numbers, name) {
		if number, err := strconv.ParseInt(value, 10, 64); err == nil {
			return slog.Int64(name, number)
		}
	}
	return slog.String(name, short(value))
}

// The attributes of a line about a message; the same names in every language.
func about(m *Message, more ...any) []any {
	attributes := []any{slog.String("queue", m.Queue), slog.Int("attempt", m.Attempt)}
	if m.MessageID != "" {
		attributes = append(attributes, slog.String("message_id", m.MessageID))
	}
	return append(attributes, more...)
}

// Opens the logger of a connection, and keeps fetching notifications for it until releaseLogger. A nil logger stands for the package's.
func acquireLogger(own *slog.Logger) *asyncLogger {
	least := leastWanted(loggerOrDefault(own))
	asyncLoggers.Lock()
	entry := asyncLoggers.open[own]
	if entry == nil {
		entry = &loggerEntry{asyncLogger: &defaultLogger}
		if own != nil {
			entry.asyncLogger = &asyncLogger{}
			entry.chosen.Store(own)
		}
		asyncLoggers.open[own] = entry
	}
	entry.connections++
	entry.least.Store(int64(least))
	wantLines()
	asyncLoggers.Unlock()
	native.AcquireDispatcher()
	return entry.asyncLogger
}

// Releases both. After the last connection with this logger, it waits until everything is logged, unless the logger takes too long.
func releaseLogger(own *slog.Logger) {
	native.ReleaseDispatcher()
	asyncLoggers.Lock()
	entry := asyncLoggers.open[own]
	entry.connections--
	last := entry.connections == 0
	if last {
		delete(asyncLoggers.open, own)
	}
	wantLines()
	asyncLoggers.Unlock()
	if last {
		entry.flush()
	}
}

// The loggers of all open connections, or the package's; one per logger.
func openLoggers() []*asyncLogger {
	asyncLoggers.Lock()
	defer asyncLoggers.Unlock()
	if len(asyncLoggers.open) == 0 {
		return []*asyncLogger{&defaultLogger}
	}
	all := make([]*asyncLogger, 0, len(asyncLoggers.open))
	for own, entry := range asyncLoggers.open {
		if own == nil && asyncLoggers.open[defaultLogger.logger()] != nil {
			continue
		}
		all = append(all, entry.asyncLogger)
	}
	return all
}

// Tells the native half which lines are wanted. The caller holds the lock of the loggers.
func wantLines() {
	if len(asyncLoggers.open) == 0 {
		native.LogLines(slog.LevelInfo)
		return
	}
	least := slog.LevelError
	for _, entry := range asyncLoggers.open {
		least = min(least, slog.Level(entry.least.Load()))
	}
	native.LogLines(least)
}

// Asks the logger again after a line, since its level may have changed. Of the lines that nobody wants there are ten a second.
func (j *asyncLogger) refreshLevel() {
	changed := false
	// SetLogger may set another one while this one is asked, which wants other lines.
	for asked := (*slog.Logger)(nil); asked != j.logger(); {
		asked = j.logger()
		var least slog.Level
		if catchPanic(func() { least = leastWanted(asked) }) != nil {
			break
		}
		changed = j.least.Swap(int64(least)) != int64(least) || changed
	}
	if !changed {
		return
	}
	asyncLoggers.Lock()
	defer asyncLoggers.Unlock()
	wantLines()
}

func (j *asyncLogger) logger() *slog.Logger { return loggerOrDefault(j.chosen.Load()) }

func loggerOrDefault(own *slog.Logger) *slog.Logger {
	if own == nil {
		own = defaultLogger.chosen.Load()
	}
	if own == nil {
		own = slog.Default()
	}
	return own
}

// The least level that a logger wants, of those that the native half has. A line that it drops would cost as much as any other.
func leastWanted(l *slog.Logger) slog.Level {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
		if l.Enabled(context.Background(), level) {
			return level
		}
	}
	return slog.LevelError
}

// The most of a text, and of a stack, that a log line shows; as much as the record of a parked message keeps.
const (
	mostText  = 1024
	mostStack = 4096
)

func short(text string) string { return cut(text, mostText) }

func cut(text string, most int) string {
	if len(text) > most {
		return valid(text[:most]) + "…"
	}
	return text
}

// Logs, on a goroutine that user code may hold up or end. If a log handler panics, its line is lost.
func (j *asyncLogger) log(level slog.Level, message string, attributes ...any) {
	panicked := catchPanic(func() { j.logger().Log(context.Background(), level, message, attributes...) })
	if panicked != nil {
		panicLogged.Do(func() { fmt.Fprintln(os.Stderr, "retryrmq: the logger panicked:", short(panicked.text())) })
	}
}

var panicLogged sync.Once

// Like say, without waiting.
func (j *asyncLogger) logLater(level slog.Level, message string, attributes ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.waiting) < maxLogLines {
		j.waiting = append(j.waiting, logLine{level, message, attributes})
	} else {
		j.lost++
	}
	j.startWriting()
}

// Logs that events were dropped; a moment later, and once for all of them.
func (j *asyncLogger) warnOfDropped(count uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.dropped += count
	j.startWriting()
}

func (j *asyncLogger) startWriting() {
	if j.written == nil {
		j.written = make(chan struct{})
		go j.write()
	}
}

// Waits until everything is logged, unless the logger takes too long.
func (j *asyncLogger) flush() {
	j.mu.Lock()
	written := j.written
	j.mu.Unlock()
	if written != nil {
		waitAtMost(userCodeTimeout, written)
	}
}

// Waits for done; false if that takes longer than the limit.
func waitAtMost(limit time.Duration, done <-chan struct{}) bool {
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
func (j *asyncLogger) write() {
	over := false
	defer func() {
		if !over { // a log handler has ended this goroutine; another one continues
			go j.write()
		}
	}()
	for {
		j.mu.Lock()
		waiting, lost, dropped := j.waiting, j.lost, j.dropped
		j.lost, j.dropped = 0, 0
		if len(waiting) > 0 {
			j.waiting = waiting[1:]
		} else if lost == 0 && dropped == 0 {
			over = true
			close(j.written)
			j.written = nil
			j.mu.Unlock()
			return
		}
		j.mu.Unlock()
		if len(waiting) > 0 {
			j.log(waiting[0].level, waiting[0].message, waiting[0].attributes...)
			j.refreshLevel()
		}
		if lost > 0 {
			j.log(slog.LevelWarn, "retryrmq: lines were not logged, because the logger is too slow", "lost", lost)
		}
		if dropped > 0 {
			j.log(slog.LevelWarn, "retryrmq: events were dropped, because their listeners are too slow", "dropped", dropped)
		}
	}
}
