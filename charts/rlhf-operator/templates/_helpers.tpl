{{/* The release's name and the chart's; once where one begins the other: release `rlhf` gives `rlhf-operator`. */}}
{{- define "rlhf-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else if hasPrefix (printf "%s-" .Release.Name) .Chart.Name -}}
{{- .Chart.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* What the operator's pods are found by. The network policies of jobs know the name: no value changes it. */}}
{{- define "rlhf-operator.selectorLabels" -}}
app.kubernetes.io/name: rlhf-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{/* What the pods of the page are found by. */}}
{{- define "rlhf-operator.uiLabels" -}}
app.kubernetes.io/name: rlhf-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: ui
{{- end }}

{{- define "rlhf-operator.labels" -}}
app.kubernetes.io/name: rlhf-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Of a root and an image's name: the name with its registry. It has one where its first part has a dot or a colon or is
     `localhost`, as every client of registries reads names. */}}
{{- define "rlhf-operator.withRegistry" -}}
{{- $name := index . 1 -}}
{{- with index . 0 -}}
{{- $registry := (.Values.global).imageRegistry | default .Values.image.registry -}}
{{- if and $registry (not (regexMatch "^([^/]*[.:][^/]*|localhost)/" $name)) }}{{ $registry }}/{{ end }}{{ $name -}}
{{- end -}}
{{- end }}

{{- define "rlhf-operator.image" -}}
{{ include "rlhf-operator.withRegistry" (list . .Values.image.repository) }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Names of the global pull secrets, which a parent chart may give as names or as objects: a list as JSON. */}}
{{- define "rlhf-operator.globalPullSecrets" -}}
{{- $names := list -}}
{{- range (.Values.global).imagePullSecrets -}}
{{- if kindIs "string" . }}{{ $names = append $names . }}{{ else }}{{ $names = append $names .name }}{{ end -}}
{{- end -}}
{{- $names | uniq | toJson -}}
{{- end }}

{{/* A pod's field `imagePullSecrets` with the global ones and the chart's, if there are any. */}}
{{- define "rlhf-operator.pullSecrets" -}}
{{- $secrets := list -}}
{{- range include "rlhf-operator.globalPullSecrets" . | fromJsonArray }}{{ $secrets = append $secrets (dict "name" .) }}{{ end -}}
{{- with concat $secrets .Values.imagePullSecrets | uniq -}}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end }}

{{- define "rlhf-operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "rlhf-operator.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{- define "rlhf-operator.tokenSecret" -}}
{{- .Values.tokenKey.existingSecret | default (printf "%s-token-key" (include "rlhf-operator.fullname" .)) -}}
{{- end }}

{{- define "rlhf-operator.trainerImage" -}}
{{- $image := include "rlhf-operator.withRegistry" (list . (.Values.jobs.trainerImage | default "rlhf-trainer")) -}}
{{- if regexMatch "[:@][^/]*$" $image }}{{ $image }}{{ else }}{{ printf "%s:%s" $image .Chart.AppVersion }}{{ end -}}
{{- end }}

{{/* The Secret with the webhook's certificate: the given one, ours, or the one that cert-manager writes. */}}
{{- define "rlhf-operator.webhookSecret" -}}
{{- $ours := printf "%s-webhook-%s" (include "rlhf-operator.fullname" .) (ternary "issued" "certificate" .Values.webhook.certManager.enabled) -}}
{{- .Values.webhook.existingSecret | default $ours -}}
{{- end }}

{{/* Whether tokens for /metrics are reviewed, which is a right in the whole cluster. */}}
{{- define "rlhf-operator.reviewsMetrics" -}}
{{- if or (eq .Values.metrics.access "authorized") (and (eq .Values.metrics.access "auto") (empty .Values.watchNamespaces)) }}true{{ end -}}
{{- end }}

{{/* Of a list of names. */}}
{{- define "rlhf-operator.namespaceSelector" -}}
matchExpressions:
  - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson . }}}
{{- end }}
