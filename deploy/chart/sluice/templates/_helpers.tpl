{{- define "sluice.labels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sluice.selectorLabels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "sluice.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary "sluice" "default" .Values.serviceAccount.create) -}}
{{- end }}

{{- define "sluice.image" -}}
{{- $tag := .Values.image.tag | default (ternary (printf "nftables-%s" .Chart.AppVersion) .Chart.AppVersion (eq .Values.mode "nftables")) -}}
{{ .Values.image.repository }}:{{ $tag }}
{{- end }}

{{- /* The KubeProxyConfiguration: what the values say, with `config` merged over it. */ -}}
{{- define "sluice.config" -}}
{{- $config := dict
  "apiVersion" "kubeproxy.config.k8s.io/v1alpha1"
  "kind" "KubeProxyConfiguration"
  "mode" .Values.mode
  "clusterCIDR" .Values.clusterCIDR
  "healthzBindAddress" .Values.healthzBindAddress
  "metricsBindAddress" .Values.metricsBindAddress
-}}
{{- toYaml (mergeOverwrite $config .Values.config) -}}
{{- end }}

{{- /* The settings that kube-proxy does not have; nothing if they have their defaults. */ -}}
{{- define "sluice.sluiceConfig" -}}
{{- if .Values.fleet.enabled -}}
apiVersion: sluice/v1alpha1
kind: SluiceConfiguration
fleet:
  namespace: sluice-nodes
  interval: {{ .Values.fleet.interval }}
{{- end -}}
{{- end }}

{{- /* The name changes with the configuration: during a rolling update, an old pod that restarts reads the configuration of its own mode. */ -}}
{{- define "sluice.configMapName" -}}
{{ .Release.Name }}-{{ printf "%s%s" (include "sluice.config" .) (include "sluice.sluiceConfig" .) | sha256sum | trunc 10 }}
{{- end }}

{{- /* The health server answers where the configuration says. Without a health server there are no probes. */ -}}
{{- define "sluice.livez" -}}
{{- $address := (include "sluice.config" . | fromYaml).healthzBindAddress -}}
{{- $port := regexFind ":[0-9]+$" $address | trimPrefix ":" | default "10256" -}}
{{- $host := regexReplaceAll ":[0-9]+$" $address "" | trimAll "[]" -}}
path: /livez
port: {{ $port }}
{{- if not (has $host (list "" "0.0.0.0" "::")) }}
host: {{ $host | quote }}
{{- end }}
{{- end }}

{{- define "sluice.probes" -}}
{{- if (include "sluice.config" . | fromYaml).healthzBindAddress -}}
# The health server opens when the API server has answered once; until then the proxy waits, however long that takes.
startupProbe:
  httpGet: {{- include "sluice.livez" . | nindent 4 }}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 1800
# /livez fails only if the proxy itself is stuck; a node that is being drained, or an API server that is away, does not kill it.
livenessProbe:
  httpGet: {{- include "sluice.livez" . | nindent 4 }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 8
readinessProbe:
  httpGet: {{- include "sluice.livez" . | nindent 4 }}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
{{- end }}

{{- define "sluice.env" -}}
- name: NODE_NAME
  valueFrom: { fieldRef: { fieldPath: spec.nodeName } }
- name: KUBERNETES_SERVICE_HOST
  value: {{ .Values.apiServer.host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .Values.apiServer.port | quote }}
{{- end }}

{{- /* docs/privileges.md has the privileges of each mode and the tests that prove them. */ -}}
{{- define "sluice.securityContext" -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsUser: 0
capabilities:
  drop: [ALL]
  add: {{ ternary "[NET_ADMIN]" "[NET_ADMIN, NET_RAW]" (eq .Values.mode "nftables") }}
{{- with .Values.seccompProfile }}
seccompProfile:
  type: Localhost
  localhostProfile: {{ . }}
{{- end }}
{{- end }}
