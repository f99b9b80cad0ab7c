{{/* Names and labels that several templates share. */}}

{{- define "sahasra.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* 50 characters, so that -operator and -worker still fit into a label. */}}
{{- define "sahasra.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "sahasra.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "sahasra.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sahasra.operator" -}}{{ include "sahasra.fullname" . }}-operator{{- end -}}
{{- define "sahasra.gateway" -}}{{ include "sahasra.fullname" . }}-gateway{{- end -}}
{{- define "sahasra.worker" -}}{{ include "sahasra.fullname" . }}-worker{{- end -}}

{{/* Labels of every object. */}}
{{- define "sahasra.labels" -}}
app.kubernetes.io/name: {{ include "sahasra.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: sahasra
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels by which pods are selected: call with (dict "root" $ "component" "worker"). They never change. */}}
{{- define "sahasra.selector" -}}
app.kubernetes.io/name: {{ include "sahasra.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "sahasra.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}

{{- define "sahasra.fileStore" -}}/var/lib/sahasra/results{{- end -}}

{{/* What every container of ours is: nobody, without rights, on a read-only root. */}}
{{- define "sahasra.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "sahasra.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Arguments with which operator and gateway know the agents' certificate. */}}
{{- define "sahasra.workerTrust" -}}
- --worker-ca-file=/var/run/secrets/sahasra/workers/ca.crt
{{- with .Values.worker.tls.serverName }}
- --worker-server-name={{ . }}
{{- end }}
{{- end }}

{{/* The volume that these need: of the agents' Secret no more than the authority. */}}
{{- define "sahasra.workerAuthority" -}}
- name: worker-authority
  secret:
    secretName: {{ .Values.worker.tls.caSecretName | default .Values.worker.tls.secretName }}
    items:
      - {key: ca.crt, path: ca.crt}
{{- end }}


{{/* A quantity in MiB, where it is a whole number with Mi, Gi or Ti; nothing otherwise. */}}
{{- define "sahasra.mebibytes" -}}
{{- $text := toString . -}}
{{- if regexMatch "^[0-9]+Mi$" $text }}{{ trimSuffix "Mi" $text }}
{{- else if regexMatch "^[0-9]+Gi$" $text }}{{ mul (trimSuffix "Gi" $text | int) 1024 }}
{{- else if regexMatch "^[0-9]+Ti$" $text }}{{ mul (trimSuffix "Ti" $text | int) 1048576 }}
{{- end }}
{{- end -}}
