package deploy

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func TestTheExamplesAreObjectsThatKubernetesTakes(t *testing.T) {
	files, err := filepath.Glob(in("examples/kubernetes/*.yaml"))
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, file := range append(files, in("examples/serve/kubernetes.yaml")) {
		name, _ := filepath.Rel(root, file)
		found := documents(t, read(t, name))
		for _, document := range found {
			if err := valid(document); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if strings.HasPrefix(name, "examples/kubernetes") {
			for _, deployment := range ofKind(found, "Deployment") {
				checkPod(t, found, deployment)
			}
		}
	}
}

// seconds of a text such as 30s.
func seconds(t *testing.T, said string) int {
	t.Helper()
	duration, err := time.ParseDuration(said)
	if err != nil {
		t.Fatal(err)
	}
	return int(duration.Seconds())
}

// What is after a word in the arguments of a container.
func following(t *testing.T, container any, word string) string {
	t.Helper()
	arguments := list(container, "args")
	for at, argument := range arguments {
		if argument == word {
			return arguments[at+1].(string)
		}
	}
	t.Fatalf("there is no %s", word)
	return ""
}

// The ScaledObject scales the consumer of the other file, by its queue alone, and gives a pod more time than it needs to drain.
func TestTheScaledObjectFitsItsConsumer(t *testing.T) {
	deployment := only(t, documents(t, read(t, "examples/kubernetes/consumer.yaml")), "Deployment")
	container := at(deployment, "spec", "template", "spec", "containers", 0)
	keda := documents(t, read(t, "examples/kubernetes/keda.yaml"))
	scaled := only(t, keda, "ScaledObject")
	trigger := at(scaled, "spec", "triggers", 0)
	if text(scaled, "spec", "scaleTargetRef", "name") != text(deployment, "metadata", "name") {
		t.Error("it scales another Deployment")
	}
	if text(trigger, "metadata", "queueName") != text(container, "args", 1) {
		t.Error("it looks at another queue")
	}
	if text(trigger, "authenticationRef", "name") != text(only(t, keda, "TriggerAuthentication"), "metadata", "name") {
		t.Error("it has no login")
	}
	if text(trigger, "metadata", "protocol") != "http" || at(trigger, "metadata", "excludeUnacknowledged") != nil ||
		at(trigger, "metadata", "useRegex") != nil {
		t.Error("it does not count what is handled, or counts what waits")
	}
	known := triggerFields(t)
	metadata, _ := at(trigger, "metadata").(map[string]any)
	for name := range metadata {
		if !known[name] {
			t.Errorf("KEDA does not read %s", name)
		}
	}
	grace, _ := strconv.Atoi(text(deployment, "spec", "template", "spec", "terminationGracePeriodSeconds"))
	cooldown, _ := strconv.Atoi(text(scaled, "spec", "cooldownPeriod"))
	drain := seconds(t, following(t, container, "--drain"))
	if seconds(t, following(t, container, "--timeout")) > drain || drain >= grace || grace >= cooldown {
		t.Errorf("a handler may take longer than the drain (%d), the grace period (%d) or the cooldown (%d)", drain, grace, cooldown)
	}
}

// ownAddress is one on loopback at which no other test listens, neither here nor in another run.
func ownAddress() string {
	return fmt.Sprintf("127.%d.%d.%d:%d", 1+rand.IntN(250), rand.IntN(250), 1+rand.IntN(250), 10_000+rand.IntN(20_000))
}

const everywhere = "0.0.0.0:9419"

// podOf starts what the consumer of an example starts, with programs of its own before those of this machine, and words of its own instead of
// some of its arguments.
func podOf(t *testing.T, broker broker, file string, programs, replaced map[string]string) *process {
	t.Helper()
	folder := t.TempDir()
	for name, source := range programs {
		write(t, filepath.Join(folder, name), "#!/bin/sh\n"+source, 0o755)
	}
	password, _ := broker.amqp.User.Password()
	write(t, filepath.Join(folder, "password"), password, 0o440)
	deployment := only(t, documents(t, read(t, file)), "Deployment")
	container := at(deployment, "spec", "template", "spec", "containers", 0)
	said := text(container, "env", 0, "value")
	login, path, _ := strings.Cut(strings.TrimPrefix(said, "amqp://"), "@")
	_, parameters, _ := strings.Cut(path, "?")
	if login != "orders" || parameters != "passwordfile=/run/secrets/rabbitmq/password" {
		t.Fatalf("another address: %s", said)
	}
	address := fmt.Sprintf("amqp://%s@%s/%s?passwordfile=%s/password", broker.amqp.User.Username(), broker.amqp.Host, broker.vhost, folder)
	environment := append(os.Environ(), "RETRYRMQ_URL="+address, "PATH="+folder+":"+os.Getenv("PATH"))
	var arguments []string
	for _, argument := range list(container, "args") {
		word := argument.(string)
		if other, is := replaced[word]; is {
			word = other
		} else if word == everywhere {
			word = ownAddress()
		}
		arguments = append(arguments, word)
	}
	return start(t, environment, program(t, "retryrmq"), arguments...)
}

// pod starts a pod of consumer.yaml with another handler.
func pod(t *testing.T, broker broker, handler string) *process {
	t.Helper()
	return podOf(t, broker, "examples/kubernetes/consumer.yaml", map[string]string{"handle-order": handler}, nil)
}

// The probes of the consumers are answered by what these start: also while there is no broker, which makes a consumer unready and restarts nothing.
func TestTheConsumersAnswerTheirProbes(t *testing.T) {
	t.Parallel()
	files := []string{"examples/kubernetes/consumer.yaml", "examples/kubernetes/sidecar.yaml"}
	probes := func(t *testing.T, broker broker, file string, ready int) {
		container := at(only(t, documents(t, read(t, file)), "Deployment"), "spec", "template", "spec", "containers", 0)
		if _, port, _ := strings.Cut(following(t, container, "--listen"), ":"); port != text(container, "ports", 0, "containerPort") {
			t.Errorf("%s: it listens at %s, and is asked elsewhere", file, port)
		}
		address := ownAddress()
		consumer := podOf(t, broker, file, map[string]string{"handle-order": "exit 0\n"}, map[string]string{everywhere: address})
		asked := 0
		for probe, expected := range map[string]int{"startupProbe": http.StatusOK, "livenessProbe": http.StatusOK, "readinessProbe": ready} {
			path := text(container, probe, "httpGet", "path")
			if path == "" {
				continue
			}
			asked++
			eventually(t, probe, func() bool { status, _ := get("http://" + address + path); return status == expected })
		}
		if asked == 0 {
			t.Errorf("%s: nothing is asked", file)
		}
		if err := consumer.end(t, syscall.SIGTERM); err != nil {
			t.Errorf("%s at SIGTERM: %v", file, err)
		}
	}
	onBrokers(t, func(t *testing.T, broker broker) {
		broker.retryrmq(t, "topology", "orders", "--apply")
		away := *broker.amqp
		away.Host = "127.0.0.1:1"
		for _, file := range files {
			probes(t, broker, file, http.StatusOK)
			nowhere := broker
			nowhere.amqp = &away
			probes(t, nowhere, file, http.StatusServiceUnavailable)
		}
	})
}

// The application is down at first, as a container that starts: the message is retried, and handled once the application works.
func TestTheSidecarWaitsForItsApplication(t *testing.T) {
	t.Parallel()
	const file = "examples/kubernetes/sidecar.yaml"
	deployment := only(t, documents(t, read(t, file)), "Deployment")
	application := at(deployment, "spec", "template", "spec", "initContainers", 0)
	target := following(t, at(deployment, "spec", "template", "spec", "containers", 0), "--http")
	if text(application, "restartPolicy") != "Always" ||
		!strings.HasPrefix(target, "http://127.0.0.1:"+text(application, "ports", 0, "containerPort")+"/") {
		t.Errorf("the consumer posts to %s, where no sidecar listens", target)
	}
	onBrokers(t, func(t *testing.T, broker broker) {
		var requests atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
			if requests.Add(1) == 1 {
				answer.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		t.Cleanup(server.Close)
		broker.retryrmq(t, "topology", "orders", "--apply")
		broker.retryrmq(t, "publish", "--queue", "orders", "--message-id", "o-1", "{}")
		consumer := podOf(t, broker, file, nil, map[string]string{target: server.URL + "/orders"})
		eventually(t, "the message was posted twice", func() bool { return requests.Load() == 2 })
		if err := consumer.end(t, syscall.SIGTERM); err != nil {
			t.Errorf("at SIGTERM: %v", err)
		}
		if parked := broker.parked(t, "orders"); len(parked) != 0 {
			t.Errorf("parked: %v", parked)
		}
	})
}

// A pod is killed while it works, the next one is told to end while it works, and the last one handles the rest.
func TestAnEvictedConsumerLosesNothing(t *testing.T) {
	t.Parallel()
	onBrokers(t, func(t *testing.T, broker broker) {
		const count = 12
		ledger := filepath.Join(t.TempDir(), "ledger")
		handler := fmt.Sprintf("echo \"begun $RETRYRMQ_MESSAGE_ID\" >>%[1]s\nsleep 0.3\necho \"done $RETRYRMQ_MESSAGE_ID\" >>%[1]s\n", ledger)
		lines := func(word string) map[string]int {
			found := map[string]int{}
			content, _ := os.ReadFile(ledger)
			for _, line := range strings.Split(string(content), "\n") {
				if id, is := strings.CutPrefix(line, word+" "); is {
					found[id]++
				}
			}
			return found
		}
		broker.retryrmq(t, "topology", "orders", "--apply")
		broker.retryrmq(t, "publish", "--queue", "orders", "--message-id", "o", "--count", strconv.Itoa(count), "{}")
		first := pod(t, broker, handler)
		eventually(t, "the first pod works", func() bool { return len(lines("done")) >= 2 })
		_ = first.end(t, syscall.SIGKILL)
		before := len(lines("done"))
		second := pod(t, broker, handler)
		eventually(t, "the second pod works", func() bool { return len(lines("done")) >= before+2 })
		if err := second.end(t, syscall.SIGTERM); err != nil {
			t.Errorf("the second pod at SIGTERM: %v", err)
		}
		pod(t, broker, handler)
		eventually(t, "all are handled", func() bool { return len(lines("done")) == count })
		eventually(t, "the queue is empty", func() bool {
			found := broker.counts(t, "orders")
			return found.Messages != nil && *found.Messages == 0
		})
		if parked := broker.parked(t, "orders"); len(parked) != 0 {
			t.Errorf("%d messages are parked: %v", len(parked), parked)
		}
	})
}

// A queue with the strategy `native` delays messages in itself, and the management API counts them: KEDA keeps a pod while they wait.
func TestKedaCountsWhatANativeQueueDelays(t *testing.T) {
	t.Parallel()
	onBrokers(t, func(t *testing.T, broker broker) {
		if broker.version == "3.10" || broker.version == "4.0" {
			t.Skip("RabbitMQ 4.3 brought delayed retries")
		}
		strategy := []string{"--strategy", "native", "--retry", "fixed(1h, retries=1)"}
		broker.retryrmq(t, append([]string{"topology", "orders", "--apply"}, strategy...)...)
		broker.retryrmq(t, "publish", "--queue", "orders", "{}")
		consume := append([]string{"consume", "orders", "--dlx", "--count", "1"}, strategy...)
		broker.retryrmq(t, append(consume, "--", "false")...)
		eventually(t, "the message waits, and counts", func() bool {
			found := broker.counts(t, "orders")
			return found.Messages != nil && *found.Messages == 1 && found.MessagesReady == 0 && found.MessagesUnacknowledged == 0
		})
	})
}

// What KEDA's scaler reads with `protocol: http`: a message counts while it is handled, not while it waits, and again when it is back,
// though no consumer runs.
func TestKedaCountsWhatIsHandledAndNotWhatWaits(t *testing.T) {
	t.Parallel()
	onBrokers(t, func(t *testing.T, broker broker) {
		is := func(what string, messages, unacknowledged int) {
			t.Helper()
			eventually(t, what, func() bool {
				found := broker.counts(t, "orders")
				return found.Messages != nil && *found.Messages == messages && found.MessagesUnacknowledged == unacknowledged
			})
		}
		mark := filepath.Join(t.TempDir(), "may-end")
		broker.retryrmq(t, "topology", "orders", "--apply")
		broker.retryrmq(t, "publish", "--queue", "orders", "--message-id", "o-1", "{}")
		worker := pod(t, broker, fmt.Sprintf("while ! [ -e %s ]; do sleep 0.1; done\necho 'retry-after: 1h' >&3\nexit 1\n", mark))
		is("the message is handled, and counts", 1, 1)
		write(t, mark, "", 0o644)
		is("the message waits, and does not count", 0, 0)
		if err := worker.end(t, syscall.SIGTERM); err != nil {
			t.Errorf("at SIGTERM: %v", err)
		}
		broker.retryrmq(t, "waiting", "flush", "orders", "--all", "--yes")
		is("the message is back, and counts", 1, 0)
	})
}
