package deploy

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

const compose = "examples/compose"

// project is the Compose project in a folder as Compose itself reads it: with the schema of the specification, and with references resolved.
func project(t *testing.T, folder string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{in(folder + "/compose.yaml")}, cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := options.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

// scraped are the addresses that Prometheus asks.
func scraped(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, job := range list(documents(t, read(t, compose+"/prometheus.yml"))[0], "scrape_configs") {
		for _, target := range list(job, "static_configs", 0, "targets") {
			found = append(found, target.(string))
		}
	}
	return found
}

// The broker of the tutorial is that of the project which shows everything, with the login that clients try by themselves.
func TestTheTutorialsBrokerIsThatOfTheComposeProject(t *testing.T) {
	tutorial, whole := project(t, "examples/broker").Services["rabbitmq"], project(t, compose).Services["rabbitmq"]
	if tutorial.Image != whole.Image {
		t.Errorf("%s, and %s", tutorial.Image, whole.Image)
	}
	if len(tutorial.Environment) > 0 {
		t.Errorf("a client without RETRYRMQ_URL is no guest: %v", tutorial.Environment)
	}
	var ports []string
	for _, port := range tutorial.Ports {
		ports = append(ports, port.HostIP+":"+port.Published)
	}
	if !slices.Equal(ports, []string{"127.0.0.1:5672", "127.0.0.1:15672"}) {
		t.Error(ports)
	}
}

// Every path, service and port that the project names is there, and only this machine reaches it.
func TestTheComposeProjectNamesWhatThereIs(t *testing.T) {
	loaded := project(t, compose)
	exists := func(path string) {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	builders := map[string][]string{}
	for name, service := range loaded.Services {
		if service.Build != nil {
			builders[service.Image] = append(builders[service.Image], name)
		}
	}
	for name, service := range loaded.Services {
		if service.Build != nil {
			exists(filepath.Join(service.Build.Context, service.Build.Dockerfile))
			// Two builders of one tag race for it.
			if by := builders[service.Image]; len(by) != 1 {
				t.Errorf("the image %s is built by %v", service.Image, by)
			}
		} else if by := builders[service.Image]; len(by) > 0 {
			if service.PullPolicy != types.PullPolicyNever {
				t.Errorf("%s: the image %s is built by %v, and would be pulled", name, service.Image, by)
			}
		} else if tag := service.Image[strings.LastIndex(service.Image, "/")+1:]; !regexp.MustCompile(`:v?\d`).MatchString(tag) {
			t.Errorf("%s: the image %s has no version", name, service.Image)
		}
		for _, volume := range service.Volumes {
			if volume.Type == types.VolumeTypeBind {
				exists(volume.Source)
			}
		}
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s: the port %s is open for other machines", name, port.Published)
			}
		}
	}
	for _, secret := range loaded.Secrets {
		exists(secret.File)
	}
	image := read(t, compose+"/Containerfile")
	for _, found := range regexp.MustCompile(`(?m)^COPY (examples/.*) \S+$`).FindAllStringSubmatch(image, -1) {
		for _, file := range strings.Fields(found[1]) {
			exists(in(file))
			if info, err := os.Stat(in(file)); err == nil && info.Mode()&0o111 == 0 {
				t.Errorf("%s cannot be run", file)
			}
		}
	}
	consumes := loaded.Services["consumer"].Command
	for _, command := range []string{loaded.Services["publisher"].Entrypoint[0], consumes[len(consumes)-1]} {
		if !strings.Contains(image, compose+"/"+command) {
			t.Errorf("the image lacks %s", command)
		}
	}
	// What names a service by its host.
	hosts := []string{"serve:9419", "rabbitmq:15692"}
	if found := scraped(t); !slices.Equal(found, hosts) {
		t.Errorf("Prometheus asks %v, and not %v", found, hosts)
	}
	hosts = append(hosts, text(documents(t, read(t, compose+"/grafana/datasource.yaml"))[0], "datasources", 0, "url"))
	hosts = append(hosts, regexp.MustCompile(`addresses = \["(.*)"\]`).FindStringSubmatch(read(t, compose+"/policy.toml"))[1])
	for _, service := range loaded.Services {
		if broker := service.Environment["RETRYRMQ_URL"]; broker != nil {
			hosts = append(hosts, regexp.MustCompile(`@.*`).FindString(*broker)[1:])
		}
	}
	for _, address := range hosts {
		address = address[strings.LastIndex(address, "/")+1:]
		host, _, _ := strings.Cut(address, ":")
		if _, known := loaded.Services[host]; !known {
			t.Errorf("%s is no service of the project", address)
		}
	}
	// The service listens where Compose, its health check and Prometheus look for it.
	serve := loaded.Services["serve"]
	_, listens, _ := strings.Cut(*serve.Environment["RETRYRMQ_SERVE_LISTEN"], ":")
	asks := serve.HealthCheck.Test[len(serve.HealthCheck.Test)-1]
	if port := strconv.Itoa(int(serve.Ports[0].Target)); port != listens || !strings.Contains(asks, ":"+port+"/readyz") {
		t.Errorf("the service listens at %s", listens)
	}
	// The page of docs/howto/docker.md says what each port shows.
	page := read(t, "docs/howto/docker.md")
	for name, service := range loaded.Services {
		for _, port := range service.Ports {
			if !strings.Contains(page, port.Published) {
				t.Errorf("the page does not say what %s shows at %s", name, port.Published)
			}
		}
	}
}

// rust-toolchain.toml asks for a toolchain that the images lack, and rustup would download it; the variable overrides the file.
func TestImagesAreBuiltWithTheToolchainThatTheyHave(t *testing.T) {
	files, err := filepath.Glob(in("examples/*/Containerfile"))
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name, _ := filepath.Rel(root, file)
		image := read(t, name)
		of := regexp.MustCompile(`(?m)^FROM \S+/rust:(\d+\.\d+\.\d+)-\S+ AS build$`).FindStringSubmatch(image)
		uses := regexp.MustCompile(`(?m)^ENV RUSTUP_TOOLCHAIN=(\S+)$`).FindStringSubmatch(image)
		if of == nil || uses == nil || of[1] != uses[1] {
			t.Errorf("%s: the image has %q, and cargo uses %q", name, of, uses)
		}
	}
}

// here replaces where a container has a file by where this repository has it.
func here(t *testing.T, service types.ServiceConfig, secrets types.Secrets, said string) string {
	t.Helper()
	for _, volume := range service.Volumes {
		if volume.Type == types.VolumeTypeBind {
			said = strings.ReplaceAll(said, volume.Target, volume.Source)
		}
	}
	for _, secret := range service.Secrets {
		said = strings.ReplaceAll(said, "/run/secrets/"+secret.Source, secrets[secret.Source].File)
	}
	return said
}

// redis is a real Valkey with the options of the project, or empty where none can be started.
func redis(t *testing.T, options []string) string {
	t.Helper()
	tool := in("tests/redis/redis")
	if err := exec.Command(tool, "available").Run(); err != nil {
		return ""
	}
	instance := []string{"--instance", "deploy-" + strconv.Itoa(os.Getpid())}
	command := exec.Command(tool, append(instance, append([]string{"start", "valkey", "0"}, options...)...)...)
	command.Env = append(os.Environ(), "RETRYRMQ_REDIS_OWNER="+strconv.Itoa(os.Getpid()))
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command(tool, append(instance, "purge")...).Run() })
	out, err := exec.Command(tool, append(instance, "url", "valkey", "0")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))[0]
}

// The service, the consumer and the publisher of the project, with its policy and its programs, on a real broker and a real Valkey: some orders
// succeed at their third attempt, and those that never do are parked.
func TestTheLoadOfTheComposeProjectFailsAndIsRetried(t *testing.T) {
	t.Parallel()
	onBrokers(t, func(t *testing.T, broker broker) {
		loaded := project(t, compose)
		serve, consumer, publisher := loaded.Services["serve"], loaded.Services["consumer"], loaded.Services["publisher"]
		policy := here(t, serve, loaded.Secrets, read(t, compose+"/policy.toml"))
		// valkey-server takes each option as --NAME VALUE, its configuration as NAME VALUE.
		options := strings.Split(strings.Join(loaded.Services["valkey"].Command[1:], " "), "--")[1:]
		if store := redis(t, options); store != "" {
			policy = strings.ReplaceAll(policy, "valkey:6379", store)
		} else {
			t.Log("there is no Valkey here: messages wait in the broker")
			policy = regexp.MustCompile(`(?m)^\[store\.redis\]\naddresses.*\n`).ReplaceAllString(policy, "")
		}
		file := filepath.Join(t.TempDir(), "policy.toml")
		write(t, file, policy, 0o644)
		management := *broker.management
		environment := append(os.Environ(), "RETRYRMQ_URL="+broker.amqp.String(), "RETRYRMQ_MANAGEMENT_URL="+management.String(),
			"RETRYRMQ_SERVE_LISTEN=127.0.0.1:0", "RETRYRMQ_SERVE_LOG=json",
			"PATH="+filepath.Dir(program(t, "retryrmq"))+":"+in(compose)+":"+os.Getenv("PATH"))
		command := func(service types.ServiceConfig) []string {
			words := []string{program(t, "retryrmq")}
			if len(service.Entrypoint) > 0 {
				words = []string{in(compose + "/" + service.Entrypoint[0])}
			}
			return append(words, service.Command...)
		}
		begin := func(words []string) *process { return start(t, environment, words[0], words[1:]...) }

		words := command(serve)
		words[slices.Index(words, "/etc/retryrmq/policy.toml")] = file
		service := begin(words)
		eventually(t, "the service says where it listens", func() bool { return address.MatchString(service.printed.String()) })
		base := "http://" + address.FindStringSubmatch(service.printed.String())[1]
		ready, _ := strings.CutPrefix(serve.HealthCheck.Test[len(serve.HealthCheck.Test)-1], "http://127.0.0.1:9419")
		eventually(t, "the service is healthy", func() bool { status, _ := get(base + ready); return status == http.StatusOK })
		worker := begin(command(consumer))
		// As with Compose, the publisher may begin before there is a queue; then it is started again.
		eventually(t, "the consumer has its queue", func() bool { return strings.Contains(worker.printed.String(), "start") })
		load := begin(command(publisher))

		eventually(t, "an order succeeds after failures", func() bool {
			return strings.Contains(worker.printed.String(), `handled {"order": 2}`)
		})
		reasons := map[string]string{}
		eventually(t, "orders are parked", func() bool {
			for _, one := range broker.parked(t, "orders") {
				reasons[text(one, "message_id")] = text(one, "reason")
			}
			return reasons["order-1"] != "" && reasons["order-10"] != ""
		})
		if reasons["order-1"] != "exhausted" || reasons["order-10"] != "requested" {
			t.Errorf("parked: %v", reasons)
		}
		if _, metrics := get(base + "/metrics"); !strings.Contains(metrics, `retryrmq_serve_parked_total{queue="orders",reason="exhausted"}`) {
			t.Errorf("Prometheus does not see what is parked: %s", metrics)
		}
		// `init: true` sends the signal to the script alone; the broker still has what it published.
		_ = syscall.Kill(-load.Process.Pid, syscall.SIGTERM)
		for name, one := range map[string]*process{"the consumer": worker, "the service": service} {
			if err := one.end(t, syscall.SIGTERM); err != nil {
				t.Errorf("%s at SIGTERM: %v", name, err)
			}
		}
	})
}

// Grafana gets the dashboard that there is, from the data source that there is.
func TestGrafanaFindsItsDashboard(t *testing.T) {
	grafana := project(t, compose).Services["grafana"]
	home := *grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	folder := text(documents(t, read(t, compose+"/grafana/dashboards.yaml"))[0], "providers", 0, "options", "path")
	if filepath.Dir(home) != folder {
		t.Errorf("the dashboard %s is not in %s", home, folder)
	}
	found := slices.IndexFunc(grafana.Volumes, func(volume types.ServiceVolumeConfig) bool { return volume.Target == home })
	if found < 0 {
		t.Fatalf("nothing is mounted at %s", home)
	}
	var dashboard object
	content, err := os.ReadFile(grafana.Volumes[found].Source)
	if err != nil || json.Unmarshal(content, &dashboard) != nil || len(list(dashboard, "panels")) == 0 {
		t.Errorf("there is no dashboard at %s: %v", grafana.Volumes[found].Source, err)
	}
}
