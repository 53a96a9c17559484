{{/* The labels that everything carries; the argument is the component. */}}
{{- define "vipwire.labels" -}}
app.kubernetes.io/name: vipwire
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* The proxy's image: the programs that a mode needs are in an image of its own. */}}
{{- define "vipwire.image" -}}
{{- $suffix := get (dict "iptables" "-iptables" "userspace" "-iptables" "ipvs" "-ipvs") .Values.mode -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s%s" .Chart.AppVersion $suffix) }}
{{- end }}

{{- define "vipwire.config" -}}
{{ ternary .Release.Name .Values.config.name .Values.config.create }}
{{- end }}

{{/* What a container adds to no capabilities, by mode. */}}
{{- define "vipwire.capabilities" -}}
{{- $more := get (dict "iptables" "NET_RAW" "ipvs" "NET_RAW" "userspace" "NET_BIND_SERVICE" "ebpf" "BPF") .Values.mode -}}
[NET_ADMIN, SYS_RESOURCE{{ with $more }}, {{ . }}{{ end }}]
{{- end }}
