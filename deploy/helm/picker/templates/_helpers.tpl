{{- define "picker.name" -}}
{{- ternary .Release.Name (printf "%s-picker" .Release.Name) (contains "picker" .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "picker.labels" -}}
app.kubernetes.io/part-of: envoy-picker
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "picker.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* What no container here needs. */}}
{{- define "picker.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "picker.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* The setting `redis` of picker.yaml and agent.yaml; a list of the root and the user. */}}
{{- define "picker.redis" -}}
{{- $root := index . 0 -}}{{- $user := index . 1 -}}{{- $redis := $root.Values.redis -}}
{{- $url := $redis.url -}}
{{- if not $url -}}
{{- if not $redis.bundled.enabled -}}{{- fail "redis: set url, or bundled.enabled" -}}{{- end -}}
{{- $url = printf "redis://%s-redis:6379" (include "picker.name" $root) -}}
{{- end -}}
{{- $settings := dict "url" $url -}}
{{- if $redis.passwordSecret.name -}}
{{- $_ := set $settings "password_file" (printf "/etc/picker-redis/password/%s" $redis.passwordSecret.key) -}}
{{- if $user -}}{{- $_ := set $settings "username" $user -}}{{- end -}}
{{- else if $user -}}
{{- fail "redis: a user needs passwordSecret.name" -}}
{{- end -}}
{{- if $redis.tlsSecret.name -}}
{{- range $setting := list "ca" "cert" "key" -}}
{{- $file := index $redis.tlsSecret $setting -}}
{{- if $file -}}{{- $_ := set $settings $setting (printf "/etc/picker-redis/tls/%s" $file) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end -}}

{{- define "picker.redisMounts" -}}
{{- if .Values.redis.passwordSecret.name }}
- {name: redis-password, mountPath: /etc/picker-redis/password, readOnly: true}
{{- end }}
{{- if .Values.redis.tlsSecret.name }}
- {name: redis-tls, mountPath: /etc/picker-redis/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "picker.redisVolumes" -}}
{{- with .Values.redis.passwordSecret.name }}
- name: redis-password
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.redis.tlsSecret.name }}
- name: redis-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}
