package deploy

import (
	"encoding/base64"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// container is what a kubelet would make of a pod's first container, in a folder instead of an image.
type container struct {
	folder      string
	arguments   []string
	environment []string
}

var address = regexp.MustCompile(`"address":"([0-9.:]+)"`)

// mount writes what ConfigMap and Secret contain, and reads the container's arguments and variables with the paths of these files.
func mount(t *testing.T, rendered []object) container {
	t.Helper()
	made := container{folder: t.TempDir()}
	here := func(said string) string {
		said = strings.ReplaceAll(said, "/run/secrets/retryrmq", filepath.Join(made.folder, "secrets"))
		return strings.ReplaceAll(said, "/etc/retryrmq", filepath.Join(made.folder, "policy"))
	}
	for _, config := range ofKind(rendered, "ConfigMap") {
		if policy, ok := at(config, "data", "policy.toml").(string); ok {
			write(t, filepath.Join(made.folder, "policy", "policy.toml"), here(policy), 0o644)
		}
	}
	for _, secret := range ofKind(rendered, "Secret") {
		data, _ := at(secret, "data").(map[string]any)
		for name, encoded := range data {
			content, err := base64.StdEncoding.DecodeString(encoded.(string))
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(made.folder, "secrets", name), string(content), 0o440)
		}
	}
	serve := at(only(t, rendered, "Deployment"), "spec", "template", "spec", "containers", 0)
	for _, argument := range list(serve, "args") {
		made.arguments = append(made.arguments, here(argument.(string)))
	}
	for _, variable := range list(serve, "env") {
		value := here(text(variable, "value"))
		if at(variable, "valueFrom") != nil {
			value = "https://example.com/from-a-secret"
		}
		made.environment = append(made.environment, text(variable, "name")+"="+value)
	}
	return made
}

func TestTheServiceAcceptsEveryPolicyThatTheChartRenders(t *testing.T) {
	needsPrograms(t)
	checked := 0
	for _, file := range valuesFiles(t) {
		made := mount(t, render(t, "--values", file))
		policy := filepath.Join(made.folder, "policy", "policy.toml")
		if _, err := os.Stat(policy); err != nil {
			continue
		}
		checked++
		check := exec.Command(program(t, "retryrmq"), append(made.arguments, "--check")...)
		check.Env = append(os.Environ(), made.environment...)
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", filepath.Base(file), err, out)
		}
	}
	if checked < 2 {
		t.Errorf("only %d policies were checked", checked)
	}
}

// The variables that the chart and the examples set are those that the programs read.
func TestTheProgramsKnowTheirVariables(t *testing.T) {
	needsPrograms(t)
	help := ""
	for _, arguments := range [][]string{{"serve", "--help"}, {"consume", "--help"}, {"publish", "--help"}} {
		out, err := exec.Command(program(t, "retryrmq"), arguments...).Output()
		if err != nil {
			t.Fatal(err)
		}
		help += string(out)
	}
	variables := regexp.MustCompile(`RETRYRMQ_[A-Z_]+`)
	for _, file := range []string{chart + "/templates/deployment.yaml", "examples/compose/compose.yaml", "examples/kubernetes/consumer.yaml"} {
		for _, name := range variables.FindAllString(read(t, file), -1) {
			if !strings.Contains(help, "[env: "+name) {
				t.Errorf("%s sets %s, which no program reads", file, name)
			}
		}
	}
}

// install renders the chart for a broker, with a policy and secrets that the service needs there.
func install(t *testing.T, broker broker, settings ...string) []object {
	t.Helper()
	password, _ := broker.amqp.User.Password()
	amqp, management := *broker.amqp, *broker.management
	amqp.User, management.User = nil, nil
	values := filepath.Join(t.TempDir(), "values.yaml")
	write(t, values, `
policy: |
  [defaults]
  retry = "fixed(100ms, retries=1)"
  [orphans]
  after = "1m"
  [[page.tokens]]
  name = "ann"
  role = "reader"
  file = "/run/secrets/retryrmq/ann"
memory: 192MiB
broker:
  url: `+amqp.String()+`
  userFile: user
management:
  url: `+management.String()+`
secrets:
  files:
    user: `+broker.amqp.User.Username()+`
    rabbitmq-password: `+password+`
    ann: the-token-of-ann-is-long
`, 0o600)
	return render(t, append([]string{"--values", values}, settings...)...)
}

// replica starts a real service as its pod would, and gives the address where it is asked.
func replica(t *testing.T, rendered []object) (*process, string) {
	t.Helper()
	made := mount(t, rendered)
	// Any port will do, and only on loopback.
	environment := append(append(os.Environ(), made.environment...), "RETRYRMQ_SERVE_LISTEN=127.0.0.1:0")
	serve := start(t, environment, program(t, "retryrmq"), made.arguments...)
	eventually(t, "the service says where it listens", func() bool { return address.MatchString(serve.printed.String()) })
	return serve, "http://" + address.FindStringSubmatch(serve.printed.String())[1]
}

// answers waits until a probe of the pod gets a status.
func answers(t *testing.T, rendered []object, base, probe string, expected int) {
	t.Helper()
	pod := at(only(t, rendered, "Deployment"), "spec", "template", "spec", "containers", 0)
	eventually(t, probe, func() bool {
		status, _ := get(base + text(pod, probe, "httpGet", "path"))
		return status == expected
	})
}

// A real service with the arguments, variables and files that the chart gives it: it logs in by the file, probes are answered, and it ends
// by itself at SIGTERM.
func TestTheServiceRunsWithWhatTheChartRenders(t *testing.T) {
	t.Parallel()
	onBrokers(t, func(t *testing.T, broker broker) {
		rendered := install(t, broker)
		serve, base := replica(t, rendered)
		for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
			answers(t, rendered, base, probe, http.StatusOK)
		}
		if _, metrics := get(base + "/metrics"); !strings.Contains(metrics, "retryrmq_serve_ready 1") {
			t.Errorf("it is not ready: %s", metrics)
		}
		if status, _ := get(base + "/"); status != http.StatusOK {
			t.Errorf("the page is not served: %d", status)
		}
		password, _ := broker.amqp.User.Password()
		for _, secret := range []string{"the-token-of-ann-is-long", ":" + password + "@"} {
			if strings.Contains(serve.printed.String(), secret) {
				t.Errorf("the log has the secret %s", secret)
			}
		}
		// What a consumer cannot handle comes back once, and is parked.
		broker.retryrmq(t, "topology", "orders", "--strategy", "service", "--apply")
		broker.retryrmq(t, "publish", "--queue", "orders", "--message-id", "o-1", "{}")
		broker.retryrmq(t, "consume", "orders", "--dlx", "--strategy", "service", "--count", "2", "--", "false")
		eventually(t, "the message is parked", func() bool { return len(broker.parked(t, "orders")) == 1 })
		if err := serve.end(t, syscall.SIGTERM); err != nil {
			t.Errorf("at SIGTERM: %v", err)
		}
	})
}

// Without the page there is none, and the probes are answered as before.
func TestThePageIsServedOnlyIfTheValueSaysSo(t *testing.T) {
	t.Parallel()
	onBrokers(t, func(t *testing.T, broker broker) {
		for value, expected := range map[string]int{"true": http.StatusOK, "false": http.StatusNotFound} {
			rendered := install(t, broker, "--set", "page="+value)
			_, base := replica(t, rendered)
			answers(t, rendered, base, "startupProbe", http.StatusOK)
			if status, _ := get(base + "/"); status != expected {
				t.Errorf("page: %s is answered with %d", value, status)
			}
		}
	})
}

// While the broker is dead, the replica is not ready, but alive: Kubernetes restarts nothing. Afterwards the same process goes on, and every
// message comes to its end.
func TestABrokerThatIsKilledRestartsNoReplica(t *testing.T) {
	t.Parallel()
	onOwnNode(t, func(t *testing.T, broker broker, control func(string)) {
		const count = 30
		rendered := install(t, broker)
		serve, base := replica(t, rendered)
		answers(t, rendered, base, "readinessProbe", http.StatusOK)
		ledger := filepath.Join(t.TempDir(), "ledger")
		done := func() map[string]bool {
			content, _ := os.ReadFile(ledger)
			found := map[string]bool{}
			for _, id := range strings.Fields(string(content)) {
				found[id] = true
			}
			return found
		}
		broker.retryrmq(t, "topology", "orders", "--strategy", "service", "--apply")
		broker.retryrmq(t, "publish", "--queue", "orders", "--message-id", "o", "--count", strconv.Itoa(count), "{}")
		environment := append(os.Environ(), "RETRYRMQ_URL="+broker.amqp.String())
		handler := `sleep 0.1; [ "$RETRYRMQ_ATTEMPT" -gt 1 ] && echo "$RETRYRMQ_MESSAGE_ID" >>` + ledger
		start(t, environment, program(t, "retryrmq"), "consume", "orders", "--dlx", "--strategy", "service", "--", "sh", "-c", handler)
		eventually(t, "messages were retried", func() bool { return len(done()) >= 3 })
		control("kill")
		answers(t, rendered, base, "readinessProbe", http.StatusServiceUnavailable)
		answers(t, rendered, base, "livenessProbe", http.StatusOK)
		control("start")
		answers(t, rendered, base, "readinessProbe", http.StatusOK)
		eventually(t, "every message was handled or is parked", func() bool {
			ended := done()
			for _, one := range broker.parked(t, "orders") {
				ended[text(one, "message_id")] = true
			}
			return len(ended) == count
		})
		if err := serve.end(t, syscall.SIGTERM); err != nil {
			t.Errorf("at SIGTERM: %v", err)
		}
	})
}
