{{- define "retryrmq-serve.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "retryrmq-serve.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "retryrmq-serve.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "retryrmq-serve.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "retryrmq-serve.selector" -}}
app.kubernetes.io/name: {{ include "retryrmq-serve.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "retryrmq-serve.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{ include "retryrmq-serve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "retryrmq-serve.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "retryrmq-serve.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "retryrmq-serve.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "retryrmq-serve.secretsFolder" -}}/run/secrets/retryrmq{{- end -}}

{{/* The URL, with the files of its secrets. */}}
{{- define "retryrmq-serve.brokerUrl" -}}
{{- $folder := include "retryrmq-serve.secretsFolder" . -}}
{{- $files := list -}}
{{- with .Values.broker.userFile }}{{ $files = append $files (printf "userfile=%s/%s" $folder .) }}{{ end -}}
{{- with .Values.broker.passwordFile }}{{ $files = append $files (printf "passwordfile=%s/%s" $folder .) }}{{ end -}}
{{- with .Values.broker.caFile }}{{ $files = append $files (printf "cacertfile=%s/%s" $folder .) }}{{ end -}}
{{- .Values.broker.url -}}
{{- if $files }}{{ contains "?" .Values.broker.url | ternary "&" "?" }}{{ join "&" $files }}{{ end -}}
{{- end -}}

{{/* A quantity of Kubernetes or of the service, such as 512Mi, 1G or 192MiB, in MiB. */}}
{{- define "retryrmq-serve.mebibytes" -}}
{{- $said := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $said | trimSuffix "B" -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if hasKey $units $unit -}}
{{- divf (mulf (trimSuffix (regexFind "[A-Za-z]*$" $said) $said | float64) (get $units $unit)) 1048576 -}}
{{- end -}}
{{- end -}}

{{/* What the schema cannot say: a sentence for each mistake. */}}
{{- define "retryrmq-serve.validate" -}}
{{- $password := "://[^/?#@\\s\"']*:[^/?#@\\s\"']+@" -}}
{{- if regexMatch $password .Values.broker.url -}}
{{- fail "broker.url contains a password, and the URL is not secret: put the password into a Secret, and name its key in broker.passwordFile" -}}
{{- end -}}
{{- if regexMatch $password .Values.management.url -}}
{{- fail "management.url contains a password, and the URL is not secret: leave the login out, and the user of the broker's URL is used" -}}
{{- end -}}
{{- if regexMatch $password .Values.policy -}}
{{- fail "policy contains a URL with a password, and a ConfigMap is not secret: put the password into a Secret, and name its file, as in passwordfile=/run/secrets/retryrmq/rabbitmq-password" -}}
{{- end -}}
{{- if regexMatch `(?m)^[ \t]*\[[ \t]*["']?service["']?[ \t]*\]` .Values.policy -}}
{{- fail "policy has a table [service], whose options the chart sets itself: remove it, and use the values broker.url, listen, prefetch, memory, log, management.url and management.caFile" -}}
{{- end -}}
{{- $named := compact (list .Values.broker.passwordFile .Values.broker.userFile .Values.broker.caFile .Values.management.caFile) -}}
{{- if and $named (not .Values.secrets.existing) -}}
{{- range $named -}}
{{- if not (hasKey $.Values.secrets.files .) -}}
{{- fail (printf "nothing provides the file %q that broker or management names: name a Secret with that key in secrets.existing, or add the key to secrets.files" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.broker.caFile (not (hasPrefix "amqps://" .Values.broker.url)) -}}
{{- fail "broker.caFile is for TLS, and broker.url is not an amqps:// address: change the URL, or leave caFile out" -}}
{{- end -}}
{{- if and .Values.broker.userFile (regexMatch "://[^/?#]*@" .Values.broker.url) -}}
{{- fail "broker.url names a user, and so does broker.userFile: leave one of them out" -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if hasPrefix "RETRYRMQ_" .name -}}
{{- fail (printf "extraEnv sets %s, which the chart sets itself: use the value of that option (broker, prefetch, memory, log, management)" .name) -}}
{{- end -}}
{{- end -}}
{{- $limit := dig "limits" "memory" "" .Values.resources -}}
{{- if and .Values.memory $limit -}}
{{- $mebibytes := include "retryrmq-serve.mebibytes" $limit -}}
{{- if and $mebibytes (le (float64 $mebibytes) (float64 (include "retryrmq-serve.mebibytes" .Values.memory))) -}}
{{- fail (printf "memory is %s, and the limit of the container is only %v: it also holds messages in flight, so raise resources.limits.memory above memory" .Values.memory $limit) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.brokers) -}}
{{- fail "networkPolicy.brokers is empty, so the service could not reach RabbitMQ: list its peers, such as {podSelector: {matchLabels: {app: rabbitmq}}}" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (regexMatch `(?m)^[ \t]*\[[ \t]*store[ \t]*\.[ \t]*redis[ \t]*\]` .Values.policy) (not .Values.existingPolicyConfigMap) (not .Values.networkPolicy.redis) (not .Values.networkPolicy.extraEgress) -}}
{{- fail "policy has a store in Redis that networkPolicy does not let the service reach: list its peers in networkPolicy.redis, or a rule in networkPolicy.extraEgress" -}}
{{- end -}}
{{- end -}}
