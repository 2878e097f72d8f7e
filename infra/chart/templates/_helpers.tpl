{{- define "millrace.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}{{- .Release.Name -}}{{- else -}}{{- printf "%s-%s" .Release.Name $name -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels that select pods: (dict "root" $ "component" "…") */}}
{{- define "millrace.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "millrace.labels" -}}
{{ include "millrace.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "millrace.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* A pool's values over poolDefaults: (dict "root" $ "name" "…"). Returns YAML. */}}
{{- define "millrace.pool" -}}
{{- $own := index .root.Values.pools .name | deepCopy -}}
{{- mergeOverwrite (deepCopy .root.Values.poolDefaults) $own | toYaml -}}
{{- end -}}

{{- define "millrace.natsUrl" -}}
{{- if .Values.nats.urls -}}
{{- join "," .Values.nats.urls -}}
{{- else -}}
{{- $name := printf "%s-nats" (include "millrace.fullname" .) -}}
{{- $scheme := ternary "tls" "nats" (ne .Values.nats.server.configSecret "") -}}
{{- range $i := until (int .Values.nats.server.replicas) -}}
{{- if $i }},{{ end }}{{ $scheme }}://{{ $name }}-{{ $i }}.{{ $name }}.{{ $.Release.Namespace }}.svc:4222
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Variables of every Millrace process: (dict "root" $ "secret" natsSecret) */}}
{{- define "millrace.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- {name: NATS_URL, value: {{ include "millrace.natsUrl" .root | quote }}}
{{- if .secret }}
- {name: MILLRACE_NATS_NKEY, value: /etc/millrace/secrets/user.nk}
- {name: MILLRACE_NATS_TLS_CA, value: /etc/millrace/secrets/ca.pem}
{{- end }}
- {name: MILLRACE_OBJECTS, value: {{ .root.Values.objects.location | quote }}}
{{- with .root.Values.objects.region }}
- {name: AWS_REGION, value: {{ . | quote }}}
{{- end }}
{{- with .root.Values.objects.endpoint }}
- {name: AWS_ENDPOINT, value: {{ . | quote }}}
{{- if hasPrefix "http://" . }}
- {name: AWS_ALLOW_HTTP, value: "true"}
{{- end }}
{{- end }}
- {name: MILLRACE_HTTP_ADDR, value: {{ printf "0.0.0.0:%d" (int .root.Values.httpPort) | quote }}}
- {name: MILLRACE_LOG_FORMAT, value: {{ .root.Values.log.format }}}
- {name: MILLRACE_LOG, value: {{ .root.Values.log.filter | quote }}}
{{- if .root.Values.traces.endpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ .root.Values.traces.endpoint | quote }}}
- {name: OTEL_TRACES_SAMPLER, value: traceidratio}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ .root.Values.traces.share | quote }}}
{{- end }}
{{- end -}}

{{- define "millrace.envFrom" -}}
{{- with .Values.objects.credentialsSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end -}}

{{/*
/healthz fails while the queue is away. A restart would not help then, so it decides on readiness alone. It fails, too, from
the moment at which a process is asked to leave. (dict "every" seconds "misses" probes)
*/}}
{{- define "millrace.probes" -}}
startupProbe:
  httpGet: {path: /metrics, port: http}
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: {{ .every }}
  timeoutSeconds: 5
  failureThreshold: {{ .misses }}
livenessProbe:
  httpGet: {path: /metrics, port: http}
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{- define "millrace.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "millrace.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {{ default (dict "type" "RuntimeDefault") .seccompProfile | toJson }}
  {{- with .appArmorProfile }}
  appArmorProfile: {{ toJson . }}
  {{- end }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Annotations of pods: where Prometheus finds the metrics. */}}
{{- define "millrace.scrape" -}}
prometheus.io/scrape: "true"
prometheus.io/path: /metrics
prometheus.io/port: {{ .Values.httpPort | quote }}
{{- end -}}

{{/* Where a pod may run, of (nodeSelector, tolerations, affinity, runtimeClassName, priorityClassName). */}}
{{- define "millrace.placement" -}}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* "true" if KEDA asks the leader over gRPC for any pool, else empty. */}}
{{- define "millrace.kedaAsks" -}}
{{- $asks := "" -}}
{{- range include "millrace.scaled" . | fromJson -}}
{{- if and (eq .scaling.kind "keda") (ne .scaling.trigger "metrics-api") }}{{- $asks = "true" }}{{- end -}}
{{- end -}}
{{- $asks -}}
{{- end -}}

{{/* The pools that the coordinator scales, as JSON: {"name": {…}} */}}
{{- define "millrace.scaled" -}}
{{- $scaled := dict -}}
{{- range $name, $_ := .Values.pools -}}
{{- $pool := include "millrace.pool" (dict "root" $ "name" $name) | fromYaml -}}
{{- if has $pool.scaling.kind (list "keda" "coordinator") -}}
{{- $_ := set $scaled $name $pool -}}
{{- end -}}
{{- end -}}
{{- toJson $scaled -}}
{{- end -}}
