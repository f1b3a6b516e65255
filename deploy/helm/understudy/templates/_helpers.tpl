{{/* The name that all objects of a release begin with. Pods get "-node-eu-central-1a-10" behind it. */}}
{{- define "understudy.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name | trunc 29 | trimSuffix "-" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc (sub 39 (len $name) | int) | trimSuffix "-") $name -}}
{{- end -}}
{{- end -}}

{{- define "understudy.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "understudy.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* Which pods are of a component: dict "root" $ "component" "node". It never changes, because selectors cannot. */}}
{{- define "understudy.selector" -}}
app.kubernetes.io/name: understudy
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The labels of an object. Pods have only the selector's and part-of: a label of a version would restart them. */}}
{{- define "understudy.labels" -}}
{{ include "understudy.selector" . }}
app.kubernetes.io/part-of: understudy
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- define "understudy.podLabels" -}}
{{ include "understudy.selector" . }}
app.kubernetes.io/part-of: understudy
{{- with .extra }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The image of one of our services: dict "root" $ "image" .Values.image.node. */}}
{{- define "understudy.image" -}}
{{- $name := .image.repository -}}
{{- if .root.Values.image.registry -}}
{{- $name = printf "%s/%s" (trimSuffix "/" .root.Values.image.registry) $name -}}
{{- end -}}
{{- $name = printf "%s:%s" $name (.root.Values.image.tag | default .root.Chart.AppVersion) -}}
{{- if .image.digest -}}
{{- $name = printf "%s@%s" $name .image.digest -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* Pod security "restricted". The images run as 10001, and volumes become writable for that group. */}}
{{- define "understudy.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "understudy.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* What all our pods have: no token of the API, and no variables of services, which begin with UNDERSTUDY_ as ours do. */}}
{{- define "understudy.podBasics" -}}
serviceAccountName: {{ include "understudy.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Where an operator wants the pods: .Values.nodes or .Values.routers. */}}
{{- define "understudy.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "understudy.redisUrl" -}}
{{- if .Values.redis.url -}}
{{- .Values.redis.url -}}
{{- else if .Values.redis.sentinel.hosts -}}
redis{{ ternary "s" "" (ne .Values.redis.tls.existingSecret "") }}+sentinel://{{ join "," .Values.redis.sentinel.hosts }}/{{ .Values.redis.sentinel.service }}/{{ int .Values.redis.sentinel.db }}
{{- else -}}
redis://{{ include "understudy.fullname" . }}-valkey:6379/0
{{- end -}}
{{- end -}}

{{/* Whether nodes and routers serve several queries. */}}
{{- define "understudy.isFleet" -}}
{{- if or .Values.applications .Values.applicationsConfigMap .Values.checkpointRoots -}}yes{{- end -}}
{{- end -}}

{{/* The ConfigMap with the file of applications; empty where there is none. */}}
{{- define "understudy.applicationsConfigMap" -}}
{{- if .Values.applications -}}{{ include "understudy.fullname" . }}-applications{{- else -}}{{ .Values.applicationsConfigMap }}{{- end -}}
{{- end -}}

{{/* A file beside it: list ID KEY TEXT. Its name changes with its text, so that the application starts anew, and no pod does. */}}
{{- define "understudy.applicationFile" -}}
{{- printf "%s.%s-%s.toml" (index . 0) (index . 1) (index . 2 | sha256sum | trunc 8) -}}
{{- end -}}

{{/* Application and Redis: what the variables of all our processes begin with. A fleet has its applications elsewhere. */}}
{{- define "understudy.clusterEnv" -}}
{{- if not (include "understudy.isFleet" .) -}}
- name: UNDERSTUDY_APPLICATION_ID
  value: {{ .Values.applicationId | quote }}
{{ end -}}
- name: UNDERSTUDY_REDIS
{{- if .Values.redis.existingSecret.name }}
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.existingSecret.name }}
      key: {{ .Values.redis.existingSecret.key }}
{{- else }}
  value: {{ include "understudy.redisUrl" . | quote }}
{{- end }}
{{- end -}}

{{/* The same for a query. It has no setting for files of TLS and takes them as options of the URL; the key of gossip is a file. */}}
{{- define "understudy.pipelineEnv" -}}
{{- if .Values.redis.tls.existingSecret -}}
{{- $options := "?ssl_ca_certs=/run/understudy/ca.crt" -}}
{{- if .Values.redis.tls.clientCertificate -}}
{{- $options = printf "%s&ssl_certfile=/run/understudy/tls.crt&ssl_keyfile=/run/understudy/tls.key" $options -}}
{{- end -}}
- name: UNDERSTUDY_APPLICATION_ID
  value: {{ .Values.applicationId | quote }}
{{- if .Values.redis.existingSecret.name }}
- name: REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ .Values.redis.existingSecret.name }}
      key: {{ .Values.redis.existingSecret.key }}
- name: UNDERSTUDY_REDIS
  value: "$(REDIS_URL){{ $options }}"
{{- else }}
- name: UNDERSTUDY_REDIS
  value: "{{ include "understudy.redisUrl" . }}{{ $options }}"
{{- end }}
{{- else -}}
{{- include "understudy.clusterEnv" . -}}
{{- end }}
{{- if .Values.gossip.existingSecret }}
- name: UNDERSTUDY_GOSSIP_KEY_FILE
  value: /run/understudy/gossip-key
{{- end }}
{{- end -}}

{{- define "understudy.pipelineHasSecrets" -}}
{{- if or .Values.gossip.existingSecret .Values.redis.tls.existingSecret -}}yes{{- end -}}
{{- end -}}

{{/* Where nodes and routers send spans to, if anywhere. */}}
{{- define "understudy.tracingEnv" -}}
{{- with .Values.tracing.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Who may ask a node or router, and what it shows to Redis and to others: files of Secrets, under one folder. */}}
{{- define "understudy.secretEnv" -}}
{{- if .Values.auth.existingSecret }}
- name: UNDERSTUDY_CREDENTIALS_FILE
  value: /run/understudy/credentials.toml
- name: UNDERSTUDY_CLUSTER_SECRET_FILE
  value: /run/understudy/cluster-secret
{{- else }}
- name: UNDERSTUDY_INSECURE_BIND
  value: "true"
{{- end }}
{{- if .Values.gossip.existingSecret }}
- name: UNDERSTUDY_GOSSIP_KEY_FILE
  value: /run/understudy/gossip-key
{{- end }}
{{- if .Values.redis.tls.existingSecret }}
- name: UNDERSTUDY_REDIS_CA_FILE
  value: /run/understudy/ca.crt
{{- if .Values.redis.tls.clientCertificate }}
- name: UNDERSTUDY_REDIS_CERT_FILE
  value: /run/understudy/tls.crt
- name: UNDERSTUDY_REDIS_KEY_FILE
  value: /run/understudy/tls.key
{{- end }}
{{- end }}
{{- end -}}

{{- define "understudy.hasSecrets" -}}
{{- if or .Values.auth.existingSecret .Values.gossip.existingSecret .Values.redis.tls.existingSecret (include "understudy.hasCertificates" .) -}}yes{{- end -}}
{{- end -}}

{{/* The volume of these files: dict "root" $ "component" "node" "keys" (list "credentials.toml" ...), the keys of auth.existingSecret, if any.
     A query has neither these nor certificates: who writes a job must not act as a router. */}}
{{- define "understudy.secretVolume" -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- if and .root.Values.auth.existingSecret .keys }}
      - secret:
          name: {{ .root.Values.auth.existingSecret }}
          items:
            {{- range .keys }}
            - {key: {{ . }}, path: {{ . }}}
            {{- end }}
      {{- end }}
      {{- if .root.Values.gossip.existingSecret }}
      - secret:
          name: {{ .root.Values.gossip.existingSecret }}
          items:
            - {key: gossip-key, path: gossip-key}
      {{- end }}
      {{- if .root.Values.redis.tls.existingSecret }}
      - secret:
          name: {{ .root.Values.redis.tls.existingSecret }}
          items:
            - {key: ca.crt, path: ca.crt}
            {{- if .root.Values.redis.tls.clientCertificate }}
            - {key: tls.crt, path: tls.crt}
            - {key: tls.key, path: tls.key}
            {{- end }}
      {{- end }}
      {{- if ne .component "pipeline" }}
      {{- with include "understudy.tlsSources" (dict "root" .root "component" .component) | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- end }}
{{- end -}}

{{/* Settings as variables. Helm reads numbers as floats: whole ones are written without an exponent. */}}
{{- define "understudy.settingsEnv" -}}
{{- range $name, $value := . }}
- name: UNDERSTUDY_{{ upper $name }}
  {{- if and (kindIs "float64" $value) (eq $value (floor $value)) }}
  value: {{ int64 $value | quote }}
  {{- else }}
  value: {{ $value | quote }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* The settings of routers. The prefix of an Ingress is one, unless it leads to a part of what routers serve themselves. */}}
{{- define "understudy.routerSettings" -}}
{{- $settings := deepCopy .Values.routers.settings -}}
{{- $path := trimSuffix "/" .Values.ingress.path -}}
{{- $isOurs := regexMatch "^/(v1|admin|docs|openapi.json|metrics|livez|readyz|healthz)(/|$)" $path -}}
{{- if and .Values.ingress.enabled $path (not $isOurs) (not (hasKey $settings "root_path")) -}}
{{- $_ := set $settings "root_path" $path -}}
{{- end -}}
{{- toJson $settings -}}
{{- end -}}

{{/* Variables that are not settings of ours. */}}
{{- define "understudy.extraEnv" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{/* The sets of nodes as JSON: one, or one for each zone that is named. */}}
{{- define "understudy.nodeSets" -}}
{{- $sets := list -}}
{{- range .Values.nodes.zones -}}
{{- $sets = append $sets (dict "suffix" (printf "-%s" .name) "zone" .name "replicas" (int .replicas)) -}}
{{- end -}}
{{- if not $sets -}}
{{- $sets = list (dict "suffix" "" "zone" "" "replicas" (int .Values.nodes.replicas)) -}}
{{- end -}}
{{- toJson $sets -}}
{{- end -}}

{{/* Nodes to ask while Redis is away: the first two of each set, by names that outlive their pods. */}}
{{- define "understudy.seed" -}}
{{- $root := . -}}
{{- $fullname := include "understudy.fullname" . -}}
{{- $seeds := list -}}
{{- range include "understudy.nodeSets" . | fromJsonArray -}}
{{- $set := . -}}
{{- range until (min 2 (int .replicas) | int) -}}
{{- $seeds = append $seeds (printf "%s-node%s-%d.%s-nodes:%d" $fullname $set.suffix . $fullname (int $root.Values.nodes.port)) -}}
{{- end -}}
{{- end -}}
{{- join "," $seeds -}}
{{- end -}}

{{- define "understudy.checkpoint" -}}
{{- .Values.checkpoint.url | default (printf "/checkpoint/%s" .Values.checkpoint.path) -}}
{{- end -}}

{{- define "understudy.checkpointClaim" -}}
{{- .Values.checkpoint.volume.existingClaim | default (printf "%s-checkpoint" (include "understudy.fullname" .)) -}}
{{- end -}}

{{/* Whether nodes mount that volume. A fleet has one only if it is named: which queries write to it is not known here. */}}
{{- define "understudy.hasVolume" -}}
{{- if not (or .Values.checkpoint.url (and (include "understudy.isFleet" .) (not .Values.checkpoint.volume.existingClaim))) -}}yes{{- end -}}
{{- end -}}

{{/* Whether nodes read object storage. What a ConfigMap of one's own says is not known. */}}
{{- define "understudy.readsStorage" -}}
{{- $urls := list .Values.checkpoint.url .Values.applicationsConfigMap -}}
{{- range .Values.applications -}}
{{- $urls = append $urls (ternary .checkpoint "" (contains "://" .checkpoint)) -}}
{{- end -}}
{{- range .Values.checkpointRoots -}}
{{- $urls = append $urls (ternary . "" (contains "://" .)) -}}
{{- end -}}
{{- join "" $urls -}}
{{- end -}}

{{/* Whether there are files of settings to mount. */}}
{{- define "understudy.hasConfig" -}}
{{- if or .Values.nodes.aliases .Values.storeBounds -}}yes{{- end -}}
{{- end -}}

{{/* A probe: dict "root" $ "component" "node" "path" "/livez". Kubelets do not look at certificates. */}}
{{- define "understudy.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
  {{- if eq (include "understudy.scheme" .) "https" }}
  scheme: HTTPS
  {{- end }}
timeoutSeconds: 3
{{- end -}}
