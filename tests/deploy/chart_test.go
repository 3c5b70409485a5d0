package deploy

import (
	"encoding/base64"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestHelmLintsTheChart(t *testing.T) {
	for _, file := range valuesFiles(t) {
		if out, err := runHelm(t, "lint", "--strict", in(chart), "--values", file); err != nil {
			t.Errorf("%s: %v", out, err)
		}
	}
}

func TestTheChartRendersObjectsThatKubernetesTakes(t *testing.T) {
	kinds := map[string]bool{}
	for _, file := range valuesFiles(t) {
		names := map[string]bool{}
		for _, document := range render(t, "--values", file) {
			if err := valid(document); err != nil {
				t.Errorf("%s: %v", filepath.Base(file), err)
			}
			kinds[text(document, "kind")] = true
			name := text(document, "kind") + "/" + text(document, "metadata", "name")
			if names[name] {
				t.Errorf("%s: %s is rendered twice", filepath.Base(file), name)
			}
			names[name] = true
		}
	}
	for _, kind := range []string{"Deployment", "ConfigMap", "Secret", "Service", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy",
		"PodMonitor", "PrometheusRule"} {
		if !kinds[kind] {
			t.Errorf("no values render a %s", kind)
		}
	}
}

// What selects the pods selects these; what a pod names is there.
func TestWhatTheChartRendersFitsTogether(t *testing.T) {
	for _, file := range valuesFiles(t) {
		rendered := render(t, "--values", file)
		deployment := only(t, rendered, "Deployment")
		labels, _ := at(deployment, "spec", "template", "metadata", "labels").(map[string]any)
		selects := func(what string, selector any) {
			chosen, _ := selector.(map[string]any)
			if len(chosen) == 0 {
				t.Errorf("%s selects everything", what)
			}
			for name, value := range chosen {
				if labels[name] != value {
					t.Errorf("%s selects %s=%v, and the pods have %v", what, name, value, labels[name])
				}
			}
		}
		selects("the Deployment", at(deployment, "spec", "selector", "matchLabels"))
		for _, one := range ofKind(rendered, "Service") {
			selects("the Service", at(one, "spec", "selector"))
		}
		for _, kind := range []string{"PodDisruptionBudget", "PodMonitor"} {
			for _, one := range ofKind(rendered, kind) {
				selects(kind, at(one, "spec", "selector", "matchLabels"))
			}
		}
		for _, one := range ofKind(rendered, "NetworkPolicy") {
			selects("the NetworkPolicy", at(one, "spec", "podSelector", "matchLabels"))
		}
		checkPod(t, rendered, deployment)
	}
}

// checkPod checks the pod of a Deployment: its volumes, the objects that they come from, its ports, and that it may do little.
func checkPod(t *testing.T, among []object, deployment object) {
	t.Helper()
	pod := at(deployment, "spec", "template", "spec")
	volumes := map[string]bool{}
	for _, volume := range list(pod, "volumes") {
		volumes[text(volume, "name")] = true
		if name := text(volume, "configMap", "name"); name == text(deployment, "metadata", "name") {
			config := slices.IndexFunc(ofKind(among, "ConfigMap"), func(one object) bool { return text(one, "metadata", "name") == name })
			if config < 0 {
				t.Errorf("there is no ConfigMap %s", name)
			}
		}
	}
	for _, container := range slices.Concat(list(pod, "initContainers"), list(pod, "containers")) {
		for _, mount := range list(container, "volumeMounts") {
			if !volumes[text(mount, "name")] {
				t.Errorf("there is no volume %s", text(mount, "name"))
			}
			if at(mount, "subPath") != nil {
				t.Errorf("%s is mounted by subPath, and never changes", text(mount, "name"))
			}
		}
		ports := map[string]bool{}
		for _, port := range list(container, "ports") {
			ports[text(port, "name")] = true
		}
		for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
			if port := text(container, probe, "httpGet", "port"); port != "" && !ports[port] {
				t.Errorf("the %s asks the port %s, which there is not", probe, port)
			}
		}
		security := at(container, "securityContext")
		if at(security, "allowPrivilegeEscalation") != false || at(security, "readOnlyRootFilesystem") != true ||
			text(security, "capabilities", "drop") != "[ALL]" {
			t.Errorf("the container may do too much: %v", security)
		}
	}
	if at(pod, "automountServiceAccountToken") != false || at(pod, "securityContext", "runAsNonRoot") != true ||
		text(pod, "securityContext", "seccompProfile", "type") != "RuntimeDefault" {
		t.Errorf("the pod may do too much: %v", at(pod, "securityContext"))
	}
}

// Secrets are in the Secret, and nowhere else.
func TestSecretsAreOnlyInTheSecret(t *testing.T) {
	files := map[string]string{"rabbitmq-password": "the-password-of-rabbitmq", "ann": "the-token-of-ann"}
	var settings []string
	for name, content := range files {
		settings = append(settings, "--set", "secrets.files."+name+"="+content)
	}
	rendered := render(t, settings...)
	secret := only(t, rendered, "Secret")
	for name, content := range files {
		encoded := base64.StdEncoding.EncodeToString([]byte(content))
		if text(secret, "data", name) != encoded {
			t.Errorf("%s is not in the Secret", name)
		}
		for _, document := range rendered {
			said := text(document)
			if strings.Contains(said, content) || text(document, "kind") != "Secret" && strings.Contains(said, encoded) {
				t.Errorf("%s is also in the %s", name, text(document, "kind"))
			}
		}
	}
}

// The rules and the dashboard of the chart are those of examples/serve, whole.
func TestTheRulesAndTheDashboardAreTheOnesOfTheExamples(t *testing.T) {
	rendered := render(t, "--values", in(chart+"/ci/full-values.yaml"))
	rules := documents(t, read(t, "examples/serve/alert-rules.yml"))[0]
	if text(only(t, rendered, "PrometheusRule"), "spec") != text(rules) {
		t.Error("the PrometheusRule has other rules")
	}
	found := false
	for _, config := range ofKind(rendered, "ConfigMap") {
		rendered := strings.TrimSpace(text(config, "data", "retryrmq-serve.json"))
		found = found || rendered == strings.TrimSpace(read(t, "examples/serve/grafana-dashboard.json"))
	}
	if !found {
		t.Error("no ConfigMap has the dashboard")
	}
}

// Each mistake has a message that says what to change.
func TestTheChartRefusesMistakes(t *testing.T) {
	file := in(chart + "/ci/default-values.yaml")
	for setting, message := range map[string]string{
		"replicaCount=0":                             "/replicaCount': minimum: got 0, want 1",
		"replicas=2":                                 "additional properties 'replicas' not allowed",
		"broker.host=rabbitmq":                       "additional properties 'host' not allowed",
		"broker.url=rabbitmq:5672":                   "/broker/url': 'rabbitmq:5672' does not match pattern '^amqps?://.'",
		"log=xml":                                    "/log': value must be one of 'text', 'json'",
		"memory=lots":                                "/memory': 'lots' does not match pattern",
		"memory=191MiB":                              "/memory': '191MiB' does not match pattern",
		"memory=512MiB":                              "memory is 512MiB, and the limit of the container is only 512Mi",
		"memory=1GiB":                                "memory is 1GiB, and the limit of the container is only 512Mi",
		"terminationGracePeriodSeconds=59":           "minimum: got 59, want 60",
		"broker.url=amqp://me:secret@rabbitmq":       "broker.url contains a password, and the URL is not secret: put the password into a Secret",
		"management.url=http://me:secret@rabbitmq":   "management.url contains a password",
		"policy=url = \"amqp://me:secret@rabbitmq\"": "policy contains a URL with a password, and a ConfigMap is not secret",
		"policy=[service]\nprefetch = 5":             "policy has a table [service], whose options the chart sets itself: remove it",
		"secrets.existing=null":                      "nothing provides the file \"rabbitmq-password\"",
		"broker.caFile=ca.crt":                       "broker.caFile is for TLS, and broker.url is not an amqps:// address",
		"broker.userFile=user":                       "broker.url names a user, and so does broker.userFile",
		"networkPolicy.enabled=true":                 "networkPolicy.brokers is empty, so the service could not reach RabbitMQ",
		"extraEnv[0].name=RETRYRMQ_URL":              "extraEnv sets RETRYRMQ_URL, which the chart sets itself",
	} {
		out, err := runHelm(t, "template", "shop", in(chart), "--values", file, "--set", setting)
		if err == nil {
			t.Errorf("%s is accepted", setting)
			continue
		}
		if !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v", setting, err)
		}
		if strings.Contains(out+strings.ReplaceAll(err.Error(), setting, ""), "me:secret") {
			t.Errorf("%s: the message repeats the password: %v", setting, err)
		}
	}
}

// Every value is in the schema, and every value of the schema has its line in values.yaml.
func TestValuesAndTheirSchemaAreTheSame(t *testing.T) {
	values := documents(t, read(t, chart+"/values.yaml"))[0]
	schema := documents(t, read(t, chart+"/values.schema.json"))[0]
	var compare func(path string, values, schema any)
	compare = func(path string, values, schema any) {
		properties, _ := at(schema, "properties").(map[string]any)
		if at(schema, "additionalProperties") != false || properties == nil || path == ".resources" {
			return
		}
		for name, inner := range properties {
			value := at(values, name)
			if value == nil && path+"."+name != ".global" {
				t.Errorf("values.yaml lacks %s.%s", path, name)
			}
			compare(path+"."+name, value, inner)
		}
	}
	compare("", map[string]any(values), schema)
	if regexp.MustCompile(`(?m)^appVersion: "(.*)"`).FindStringSubmatch(read(t, chart+"/Chart.yaml"))[1] == "" {
		t.Error("the chart has no appVersion")
	}
}

// A changed policy gives the pods another annotation, so that they are replaced; nothing else does that.
func TestAChangedPolicyReplacesThePods(t *testing.T) {
	file := in(chart + "/ci/default-values.yaml")
	checksum := func(settings ...string) string {
		arguments := []string{"--values", file}
		for _, setting := range settings {
			arguments = append(arguments, "--set", setting)
		}
		deployment := only(t, render(t, arguments...), "Deployment")
		return text(deployment, "spec", "template", "metadata", "annotations", "checksum/policy")
	}
	first := checksum()
	if first == "" || checksum("replicaCount=3") != first {
		t.Errorf("the annotation is %q, and another number of replicas changes it", first)
	}
	if other := checksum("policy=[defaults]"); other == first || other == "" {
		t.Errorf("with another policy the annotation is %q, too", other)
	}
	for _, setting := range []string{"restartOnPolicyChange=false", "existingPolicyConfigMap=mine"} {
		if found := checksum(setting); found != "" {
			t.Errorf("%s: the annotation is %q", setting, found)
		}
	}
}

// OpenShift chooses the user itself, and refuses a pod that does.
func TestTheClusterMayChooseTheUser(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	write(t, values, "podSecurityContext: { runAsUser: null, runAsGroup: null, fsGroup: null }\n", 0o644)
	arguments := []string{"--values", in(chart + "/ci/default-values.yaml"), "--values", values}
	found, _ := at(only(t, render(t, arguments...), "Deployment"), "spec", "template", "spec", "securityContext").(map[string]any)
	if len(found) != 2 || found["runAsNonRoot"] != true || found["seccompProfile"] == nil {
		t.Errorf("the pod has %v", found)
	}
	write(t, values, "podSecurityContext: null\n", 0o644)
	if found := at(only(t, render(t, arguments...), "Deployment"), "spec", "template", "spec", "securityContext"); found != nil {
		t.Errorf("the pod has %v", found)
	}
}

// A network policy that keeps the service from its store is refused, and resolvers may listen on the port of OpenShift's.
func TestTheNetworkPolicyLetsTheServiceReachItsStoreAndNames(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	arguments := []string{"template", "shop", in(chart), "--values", in(chart + "/ci/default-values.yaml"), "--values", values}
	const store = "networkPolicy: { enabled: true, brokers: [{ podSelector: {} }] }\npolicy: |\n  [store.redis]\n  addresses = [\"valkey:6379\"]\n"
	write(t, values, store, 0o644)
	if _, err := runHelm(t, arguments...); err == nil || !strings.Contains(err.Error(), "list its peers in networkPolicy.redis") {
		t.Errorf("a store out of reach: %v", err)
	}
	for _, reach := range []string{"redis=[{\"podSelector\":{}}]", "extraEgress=[{\"to\":[]}]"} {
		if _, err := runHelm(t, append(arguments, "--set-json", "networkPolicy."+reach)...); err != nil {
			t.Errorf("%s: %v", reach, err)
		}
	}
	rendered := render(t, append(arguments[3:], "--set-json", "networkPolicy.redis=[{\"podSelector\":{}}]")...)
	ports := text(only(t, rendered, "NetworkPolicy"), "spec", "egress", 0, "ports")
	for _, port := range []string{"53", "5353"} {
		for _, protocol := range []string{"UDP", "TCP"} {
			if !strings.Contains(ports, "map[port:"+port+" protocol:"+protocol+"]") {
				t.Errorf("no names at %s by %s: %s", port, protocol, ports)
			}
		}
	}
}

// A limit may be written in each way that Kubernetes reads.
func TestALimitAboveMemoryIsAccepted(t *testing.T) {
	for limit, fits := range map[string]bool{"256Mi": false, "257Mi": true, "268435456": false, "268435457": true, "268435k": false, "268436k": true,
		"268M": false, "0.3G": true, "1Gi": true, "1e9": true} {
		values := filepath.Join(t.TempDir(), "values.yaml")
		write(t, values, "memory: 256MiB\nresources: { limits: { memory: "+limit+" } }\n", 0o644)
		_, err := runHelm(t, "template", "shop", in(chart), "--values", in(chart+"/ci/default-values.yaml"), "--values", values)
		if (err == nil) != fits {
			t.Errorf("%s: %v", limit, err)
		}
	}
}

// One replica needs no budget, which would keep its node from being drained.
func TestABudgetIsForSeveralReplicas(t *testing.T) {
	file := in(chart + "/ci/default-values.yaml")
	for count, budgets := range map[string]int{"1": 0, "2": 1} {
		if found := ofKind(render(t, "--values", file, "--set", "replicaCount="+count), "PodDisruptionBudget"); len(found) != budgets {
			t.Errorf("%d budgets for %s replicas", len(found), count)
		}
	}
}
