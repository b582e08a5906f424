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
{{- if .Values.init.enabled }}
{{- $_ := set $config "conntrack" (dict) -}}
{{- end }}
{{- toYaml (mergeOverwrite $config .Values.config) -}}
{{- end }}

{{- define "sluice.env" -}}
- name: NODE_NAME
  valueFrom: { fieldRef: { fieldPath: spec.nodeName } }
- name: KUBERNETES_SERVICE_HOST
  value: {{ .Values.apiServer.host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .Values.apiServer.port | quote }}
{{- end }}

{{- /* docs/security.md has the capabilities of each mode and the tests that prove them. */ -}}
{{- define "sluice.securityContext" -}}
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsUser: 0
capabilities:
  drop: [ALL]
  add: {{ ternary "[NET_ADMIN]" "[NET_ADMIN, NET_RAW]" (eq .Values.mode "nftables") }}
{{- end }}
