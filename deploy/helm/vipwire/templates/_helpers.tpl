{{/* The labels that everything carries; the argument is the component. */}}
{{- define "vipwire.labels" -}}
app.kubernetes.io/name: vipwire
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* The proxy's image. */}}
{{- define "vipwire.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The image of DNS, Ingress and Gateway API. */}}
{{- define "vipwire.all" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}-all
{{- end }}

{{- define "vipwire.config" -}}
{{ ternary .Release.Name .Values.config.name .Values.config.create }}
{{- end }}

{{/* What a container adds to no capabilities, by mode. */}}
{{- define "vipwire.capabilities" -}}
{{- $more := get (dict "iptables" "NET_RAW" "ipvs" "NET_RAW" "userspace" "NET_BIND_SERVICE" "ebpf" "BPF") .Values.mode -}}
[NET_ADMIN, SYS_RESOURCE{{ with $more }}, {{ . }}{{ end }}]
{{- end }}
