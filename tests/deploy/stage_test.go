package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what has to come; it says nothing about how fast it is.
const patience = 2 * time.Minute

// program is the path of one of ours, built before.
func program(t *testing.T, name string) string {
	t.Helper()
	target := os.Getenv("CARGO_TARGET_DIR")
	if target == "" {
		target = in("target")
	}
	path := filepath.Join(target, "debug", name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: cargo build -p retryrmq-cli -p retryrmq-serve", err)
	}
	return path
}

// needsPrograms ends a short test.
func needsPrograms(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: without the programs and a broker")
	}
}

// broker is a virtual host of a real one.
type broker struct {
	version, vhost   string // the version without its patch
	amqp, management *url.URL
}

// eachBroker runs a test for the newest broker, or in `make test-all` for each, with the fields of its line in RETRYRMQ_TEST_BROKERS.
func eachBroker(t *testing.T, test func(t *testing.T, fields []string)) {
	t.Helper()
	needsPrograms(t)
	lines := strings.Split(strings.TrimSpace(os.Getenv("RETRYRMQ_TEST_BROKERS")), "\n")
	if lines[0] == "" {
		t.Fatal("RETRYRMQ_TEST_BROKERS is not set: run this inside tests/broker/with-brokers, or with -short")
	}
	if os.Getenv("RETRYRMQ_TEST_MATRIX") == "assigned" {
		lines = lines[len(lines)-1:]
	}
	for _, line := range lines {
		fields := strings.Split(line, "|")
		t.Run(fields[0], func(t *testing.T) { test(t, fields) })
	}
}

// minor is 4.3 of 4.3.6.
func minor(version string) string { return strings.Join(strings.Split(version, ".")[:2], ".") }

// brokerAt is a virtual host of its own at two addresses.
func brokerAt(t *testing.T, version, amqp, management string) broker {
	t.Helper()
	one := broker{version: minor(version), vhost: fmt.Sprintf("deploy-%d-%d", os.Getpid(), time.Now().UnixNano())}
	var err error
	if one.amqp, err = url.Parse(amqp); err != nil {
		t.Fatal(err)
	}
	if one.management, err = url.Parse(management); err != nil || management == "" {
		t.Skip("its management API is out of reach")
	}
	if one.management.User == nil {
		one.management.User = one.amqp.User
	}
	one.amqp.Path, one.amqp.RawPath = "/"+one.vhost, ""
	one.manage(t, http.MethodPut, "vhosts/"+one.vhost, "", nil)
	user := "permissions/" + one.vhost + "/" + one.amqp.User.Username()
	one.manage(t, http.MethodPut, user, `{"configure": ".*", "write": ".*", "read": ".*"}`, nil)
	return one
}

// onBrokers runs a test in a virtual host of its own.
func onBrokers(t *testing.T, test func(*testing.T, broker)) {
	t.Helper()
	eachBroker(t, func(t *testing.T, fields []string) {
		one := brokerAt(t, fields[0], fields[1], fields[2])
		t.Cleanup(func() { one.manage(t, http.MethodDelete, "vhosts/"+one.vhost, "", nil) })
		test(t, one)
	})
}

// onOwnNode runs a test on a node of its own, which it may `kill` and `start`.
func onOwnNode(t *testing.T, test func(t *testing.T, broker broker, control func(verb string))) {
	t.Helper()
	eachBroker(t, func(t *testing.T, fields []string) {
		if fields[3] == "" {
			t.Skip("this broker may not be killed")
		}
		version := minor(fields[0])
		run := func(words ...string) string {
			command := exec.Command("bash", append([]string{"-c", fields[3] + ` "$@"`, "control"}, words...)...)
			out, err := command.Output()
			if err != nil {
				t.Fatalf("%v: %v", words, err)
			}
			return strings.TrimSpace(string(out))
		}
		node := run("spawn", version)
		t.Cleanup(func() { run("release", version, node) })
		addresses := strings.Fields(run("url", version, node))
		test(t, brokerAt(t, version, addresses[0], addresses[1]), func(verb string) { run(verb, version, node) })
	})
}

// manage asks the management API, and reads its answer.
func (b broker) manage(t *testing.T, method, path, body string, answer any) {
	t.Helper()
	request, err := http.NewRequest(method, b.management.JoinPath("api", path).String(), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("content-type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	said, _ := io.ReadAll(response.Body)
	if response.StatusCode >= 300 {
		t.Fatalf("%s %s: %s %s", method, path, response.Status, said)
	}
	if answer != nil {
		if err := json.Unmarshal(said, answer); err != nil {
			t.Fatal(err)
		}
	}
}

// counts are what the management API says of a queue. They are some seconds old.
type counts struct {
	Messages               *int `json:"messages"`
	MessagesReady          int  `json:"messages_ready"`
	MessagesUnacknowledged int  `json:"messages_unacknowledged"`
}

func (b broker) counts(t *testing.T, queue string) counts {
	t.Helper()
	var found counts
	b.manage(t, http.MethodGet, "queues/"+b.vhost+"/"+queue, "", &found)
	return found
}

// command is a subcommand of retryrmq.
func (b broker) command(t *testing.T, arguments ...string) *exec.Cmd {
	t.Helper()
	command := exec.Command(program(t, "retryrmq"), arguments...)
	command.Env = append(os.Environ(), "RETRYRMQ_URL="+b.amqp.String())
	return command
}

// retryrmq runs a subcommand to its end.
func (b broker) retryrmq(t *testing.T, arguments ...string) {
	t.Helper()
	if out, err := b.command(t, arguments...).CombinedOutput(); err != nil {
		t.Fatalf("retryrmq %s: %v: %s", strings.Join(arguments, " "), err, out)
	}
}

// parked are the messages in the parking queue of a queue, but for those that the service holds because it looks at them, too.
func (b broker) parked(t *testing.T, queue string) []object {
	t.Helper()
	command := b.command(t, "--json", "parked", "ls", queue)
	out, err := command.Output()
	// 3: there is no such queue, because nothing was parked. 6: somebody else holds messages.
	if code := command.ProcessState.ExitCode(); code != 0 && code != 3 && code != 6 {
		t.Fatalf("retryrmq parked ls %s: %v", queue, err)
	}
	var found []object
	for _, line := range strings.Split(string(out), "\n") {
		var one object
		if json.Unmarshal([]byte(line), &one) == nil {
			found = append(found, one)
		}
	}
	return found
}

// output is what a process printed so far.
type output struct {
	lock  sync.Mutex
	bytes bytes.Buffer
}

func (o *output) Write(some []byte) (int, error) {
	o.lock.Lock()
	defer o.lock.Unlock()
	return o.bytes.Write(some)
}

func (o *output) String() string {
	o.lock.Lock()
	defer o.lock.Unlock()
	return o.bytes.String()
}

// process runs in the background until the end of its test.
type process struct {
	*exec.Cmd
	printed output
	ended   chan error
}

func start(t *testing.T, environment []string, name string, arguments ...string) *process {
	t.Helper()
	one := &process{Cmd: exec.Command(name, arguments...), ended: make(chan error, 1)}
	one.Env = environment
	one.Stdout, one.Stderr = &one.printed, &one.printed
	one.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// Programs that outlive it keep its output open.
	one.WaitDelay = time.Second
	if err := one.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { one.ended <- one.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-one.Process.Pid, syscall.SIGKILL)
		if t.Failed() {
			t.Logf("%s %s:\n%s", name, strings.Join(arguments, " "), one.printed.String())
		}
	})
	return one
}

// end sends a signal and waits for the end.
func (p *process) end(t *testing.T, signal os.Signal) error {
	t.Helper()
	if err := p.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.ended:
		return err
	case <-time.After(patience):
		t.Fatal("it does not end")
		return nil
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// get is the answer of an address, or an empty one while there is none.
func get(address string) (int, string) {
	response, err := http.Get(address)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	said, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(said)
}

// write makes a file, and its folder.
func write(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}
