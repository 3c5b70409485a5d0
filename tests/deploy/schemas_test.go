package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

// Whose schemas are valid for what is rendered. A module's zip contains more than Go, and Go checks its sum.
const (
	kubernetes         = "k8s.io/kubernetes@v1.37.2"
	keda               = "github.com/kedacore/keda/v2@v2.21.0"
	prometheusOperator = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
)

// module is the folder of a module, downloaded once for this machine. A download that fails is tried again.
func module(name string) (string, error) {
	var out []byte
	var err error
	for _, pause := range []time.Duration{2 * time.Second, 5 * time.Second, 10 * time.Second, 0} {
		if out, err = exec.Command("go", "mod", "download", "-json", name).Output(); err == nil {
			var found struct{ Dir string }
			return found.Dir, json.Unmarshal(out, &found)
		}
		time.Sleep(pause)
	}
	return "", fmt.Errorf("%s: %w: %s", name, err, out)
}

// closed refuses fields that a schema does not name, as `kubectl --validate=strict` does.
func closed(schema any) {
	switch schema := schema.(type) {
	case map[string]any:
		_, named := schema["properties"].(map[string]any)
		_, open := schema["additionalProperties"]
		if named && !open && schema["x-kubernetes-preserve-unknown-fields"] != true {
			schema["additionalProperties"] = false
		}
		if schema["x-kubernetes-int-or-string"] == true || schema["format"] == "int-or-string" {
			delete(schema, "type")
			delete(schema, "format")
			schema["anyOf"] = []any{map[string]any{"type": "integer"}, map[string]any{"type": "string"}}
		}
		for _, inner := range schema {
			closed(inner)
		}
	case []any:
		for _, inner := range schema {
			closed(inner)
		}
	}
}

// ofKubernetes has the definitions of all its kinds.
var ofKubernetes = sync.OnceValues(func() (map[string]any, error) {
	folder, err := module(kubernetes)
	if err != nil {
		return nil, err
	}
	bytes, err := os.ReadFile(filepath.Join(folder, "api/openapi-spec/swagger.json"))
	if err != nil {
		return nil, err
	}
	var swagger struct {
		Definitions map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(bytes, &swagger); err != nil {
		return nil, err
	}
	closed(swagger.Definitions)
	return map[string]any{"definitions": swagger.Definitions}, nil
})

// definition is the name of a kind in ofKubernetes, and empty if it has none.
func definition(definitions map[string]any, apiVersion, kind string) string {
	group, version, found := strings.Cut(apiVersion, "/")
	if !found {
		group, version = "", apiVersion
	}
	for name, one := range definitions {
		for _, of := range list(one, "x-kubernetes-group-version-kind") {
			if text(of, "group") == group && text(of, "version") == version && text(of, "kind") == kind {
				return name
			}
		}
	}
	return ""
}

// customResources are where the modules have the definitions of kinds that are not Kubernetes' own.
var customResources = map[string][2]string{
	"ScaledObject":          {keda, "config/crd/bases/keda.sh_scaledobjects.yaml"},
	"TriggerAuthentication": {keda, "config/crd/bases/keda.sh_triggerauthentications.yaml"},
	"PodMonitor":            {prometheusOperator, "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"},
	"PrometheusRule":        {prometheusOperator, "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"},
}

func customSchema(apiVersion, kind string) (map[string]any, error) {
	where, known := customResources[kind]
	if !known {
		return nil, fmt.Errorf("no schema of %s %s is known", apiVersion, kind)
	}
	folder, err := module(where[0])
	if err != nil {
		return nil, err
	}
	bytes, err := os.ReadFile(filepath.Join(folder, where[1]))
	if err != nil {
		return nil, err
	}
	var resource map[string]any
	if err := yaml.Unmarshal(bytes, &resource); err != nil {
		return nil, err
	}
	for _, version := range list(resource, "spec", "versions") {
		if text(resource, "spec", "group")+"/"+text(version, "name") == apiVersion {
			schema, _ := at(version, "schema", "openAPIV3Schema").(map[string]any)
			// Of an object's metadata a resource's schema says only that there is some.
			properties, _ := schema["properties"].(map[string]any)
			properties["metadata"] = map[string]any{"type": "object"}
			closed(schema)
			return schema, nil
		}
	}
	return nil, fmt.Errorf("there is no version %s of %s", apiVersion, kind)
}

// valid says what is wrong with an object, as strictly as an API server.
func valid(document object) error {
	apiVersion, kind := text(document, "apiVersion"), text(document, "kind")
	core, err := ofKubernetes()
	if err != nil {
		return err
	}
	definitions, _ := core["definitions"].(map[string]any)
	schema := core
	if name := definition(definitions, apiVersion, kind); name != "" {
		schema = map[string]any{"$ref": "#/definitions/" + name, "definitions": definitions}
	} else if schema, err = customSchema(apiVersion, kind); err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft4)
	if err := compiler.AddResource("kind.json", schema); err != nil {
		return err
	}
	compiled, err := compiler.Compile("kind.json")
	if err != nil {
		return err
	}
	if err := compiled.Validate(map[string]any(document)); err != nil {
		return fmt.Errorf("%s %s: %w", kind, text(document, "metadata", "name"), err)
	}
	return nil
}

// The schemas find the mistakes that they are here for.
func TestSchemasRefuseMistakes(t *testing.T) {
	const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: { name: a }
spec:
  selector: { matchLabels: { a: b } }
  template:
    metadata: { labels: { a: b } }
    spec:
      containers:
        - name: a
          image: a
`
	if err := valid(documents(t, deployment)[0]); err != nil {
		t.Fatal(err)
	}
	for mistake, fix := range map[string]string{
		"          imagePolicy: Always\n":               "additional properties 'imagePolicy' not allowed",
		"          ports: [{ containerPort: web }]\n":   "got string, want integer",
		"          volumeMounts: [{ name: secrets }]\n": "missing property 'mountPath'",
	} {
		err := valid(documents(t, deployment+mistake)[0])
		if err == nil || !strings.Contains(err.Error(), fix) {
			t.Errorf("%s: %v", mistake, err)
		}
	}
	scaled := documents(t, "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: { name: a }\nspec: { cooldown: 3 }\n")[0]
	err := valid(scaled)
	for _, complaint := range []string{"'cooldown' not allowed", "'scaleTargetRef'", "'triggers'"} {
		if err == nil || !strings.Contains(err.Error(), complaint) {
			t.Errorf("%s: %v", complaint, err)
		}
	}
}

// triggerFields are what KEDA reads in the metadata of a trigger for RabbitMQ. It ignores anything else.
func triggerFields(t *testing.T) map[string]bool {
	t.Helper()
	folder, err := module(keda)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(filepath.Join(folder, "pkg/scalers/rabbitmq_scaler.go"))
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]bool{}
	for _, found := range regexp.MustCompile(`keda:"name=(\w+), +order=[^"]*triggerMetadata`).FindAllSubmatch(source, -1) {
		fields[string(found[1])] = true
	}
	return fields
}
