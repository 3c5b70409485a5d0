package main

import (
	"encoding/json"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type figures map[string]float64

// Counts handled messages, and ends the process with its figures at the last one.
type meter struct {
	left  atomic.Int64
	count int
	began time.Time
	cpu   time.Duration
	heap  runtime.MemStats
	first sync.Once
}

func newMeter(count int) *meter {
	m := &meter{count: count}
	m.left.Store(int64(count))
	m.start()
	return m
}

func (m *meter) start() {
	m.began, m.cpu = time.Now(), cpu()
	runtime.ReadMemStats(&m.heap)
}

// A delivery is here. The clock starts with the first: what is measured may have waited for its messages.
func (m *meter) arrived() { m.first.Do(m.start) }

func (m *meter) one() {
	if m.left.Add(-1) != 0 {
		return
	}
	took, used := time.Since(m.began), cpu()-m.cpu
	var heap runtime.MemStats
	runtime.ReadMemStats(&heap)
	count := float64(m.count)
	print(figures{
		"per_second":  count / took.Seconds(),
		"cpu_us":      float64(used.Microseconds()) / count,
		"allocations": float64(heap.Mallocs-m.heap.Mallocs) / count,
		"memory_mib":  float64(resident()) / 1024,
	})
}

// Collects how long messages were under way.
type lateness struct {
	count int
	late  chan time.Duration
}

func newLateness(count int) *lateness {
	l := &lateness{count: count, late: make(chan time.Duration, count)}
	began, used := time.Now(), cpu()
	go func() {
		var all []time.Duration
		for late := range l.late {
			if all = append(all, late); len(all) == count {
				break
			}
		}
		slices.Sort(all)
		print(figures{
			"p50_ms":      all[len(all)/2].Seconds() * 1000,
			"p99_ms":      all[len(all)*99/100].Seconds() * 1000,
			"cpu_percent": float64(cpu()-used) / float64(time.Since(began)) * 100,
		})
	}()
	return l
}

func (l *lateness) one(body []byte) {
	now := monotonic()
	sent, _, _ := strings.Cut(string(body), " ")
	at, err := strconv.ParseInt(sent, 10, 64)
	check(err)
	l.late <- time.Duration(now - at)
}

// One clock for all processes.
func monotonic() int64 { return time.Now().UnixNano() }

func print(f figures) {
	line := must(json.Marshal(f))
	_, _ = os.Stdout.Write(append(line, '\n'))
	os.Exit(0)
}

// CPU time of all threads of this process, Go's and the native half's.
func cpu() time.Duration {
	var usage syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Resident memory in KiB.
func resident() int {
	for line := range strings.Lines(string(must(os.ReadFile("/proc/self/status")))) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return must(strconv.Atoi(strings.Fields(rest)[0]))
		}
	}
	return 0
}
