{{/* What the schema cannot say: values that contradict each other. Included by the service account, which is always there. */}}
{{- define "understudy.refusals" -}}
{{- $ways := list -}}
{{- if .Values.redis.url -}}{{- $ways = append $ways "redis.url" -}}{{- end -}}
{{- if .Values.redis.sentinel.hosts -}}{{- $ways = append $ways "redis.sentinel.hosts" -}}{{- end -}}
{{- if .Values.redis.existingSecret.name -}}{{- $ways = append $ways "redis.existingSecret.name" -}}{{- end -}}
{{- if .Values.valkey.enabled -}}{{- $ways = append $ways "valkey.enabled" -}}{{- end -}}
{{- if ne (len $ways) 1 -}}
{{- fail (printf "exactly one Redis: give redis.url, redis.sentinel.hosts or redis.existingSecret.name with valkey.enabled=false, or valkey.enabled alone; given are [%s]" (join ", " $ways)) -}}
{{- end -}}
{{- if and .Values.auth.existingSecret .Values.auth.insecureBind -}}
{{- fail "auth.existingSecret asks readers for credentials: set auth.insecureBind=false with it" -}}
{{- end -}}
{{- if not (or .Values.auth.existingSecret .Values.auth.insecureBind) -}}
{{- fail "pods listen on all their addresses: give auth.existingSecret, or auth.insecureBind=true where the network keeps strangers out" -}}
{{- end -}}
{{- if ne (eq (include "understudy.nodePeerSecret" .) "") (eq (include "understudy.routerPeerSecret" .) "") -}}
{{- fail "routers and nodes show each other certificates: give both tls.peers.nodes.existingSecret and tls.peers.routers.existingSecret, or neither" -}}
{{- end -}}
{{- if and .Values.auth.existingSecret (not .Values.tls.externalTermination) (not (and (include "understudy.readersSecret" .) (include "understudy.nodePeerSecret" .))) -}}
{{- fail "keys would cross the network in plain: give tls.existingSecret, tls.peers.nodes.existingSecret and tls.peers.routers.existingSecret, or tls.certManager.issuer.name; or tls.externalTermination=true where an ingress or a mesh ends TLS" -}}
{{- end -}}
{{- if and .Values.monitoring.serviceMonitor.enabled (include "understudy.nodePeerSecret" .) (not .Values.auth.existingSecret) -}}
{{- fail "nodes with certificates answer nobody whom they do not know: give auth.existingSecret, and monitoring.serviceMonitor.existingSecret with a key of the role monitor" -}}
{{- end -}}
{{- if and .Values.redis.tls.clientCertificate (not .Values.redis.tls.existingSecret) -}}
{{- fail "redis.tls.clientCertificate is in redis.tls.existingSecret: give that, too" -}}
{{- end -}}
{{- if .Values.redis.tls.existingSecret -}}
{{- if or .Values.valkey.enabled (and .Values.redis.url (not (hasPrefix "rediss" .Values.redis.url))) -}}
{{- fail "redis.tls is for a Redis that speaks TLS: give redis.url as rediss:// or rediss+sentinel://, or a Secret with such a URL; the Valkey for trials speaks none" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.monitoring.serviceMonitor.enabled .Values.auth.existingSecret (not .Values.monitoring.serviceMonitor.existingSecret.name) -}}
{{- fail "with auth.existingSecret nobody reads /metrics without a key: give monitoring.serviceMonitor.existingSecret, a key of the role monitor" -}}
{{- end -}}
{{- if and .Values.checkpoint.url .Values.checkpoint.volume.existingClaim -}}
{{- fail "the checkpoint is in one place: give checkpoint.url or checkpoint.volume.existingClaim" -}}
{{- end -}}
{{- if and .Values.checkpoint.url (eq .Values.spark.kind "deployment") -}}
{{- fail "spark.kind=deployment writes to the shared volume: with checkpoint.url use sparkApplication, or none for a query that runs elsewhere" -}}
{{- end -}}
{{- if include "understudy.isFleet" . -}}{{- include "understudy.refusalsOfFleet" . -}}{{- end -}}
{{- if and .Values.checkpoint.existingSecret (not (include "understudy.readsStorage" .)) -}}
{{- fail "checkpoint.existingSecret has the credentials of checkpoint.url: without a URL it is not used" -}}
{{- end -}}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs names no gateway: give one, such as [{name: public, namespace: gateways}]" -}}
{{- end -}}
{{- with .Values.routers.autoscaling -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- fail "routers.autoscaling.minReplicas is above maxReplicas" -}}
{{- end -}}
{{- if and (eq .kind "keda") (or (not .prometheusUrl) (not .inFlight)) -}}
{{- fail "routers.autoscaling.kind=keda asks Prometheus: give prometheusUrl and inFlight" -}}
{{- end -}}
{{- end -}}
{{- with .Values.spark -}}
{{- if eq .kind "sparkApplication" -}}
{{- if not .application.image -}}
{{- fail "spark.kind=sparkApplication needs spark.application.image: Spark's own with your job and Understudy's pipeline in it" -}}
{{- end -}}
{{- if not (or .application.pyFiles .application.jars) -}}
{{- fail "spark.kind=sparkApplication needs spark.application.pyFiles or jars: what to run" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .kind "deployment") .deployment.image (not .deployment.command) -}}
{{- fail "spark.deployment.image needs spark.deployment.command: what to run" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The same for a fleet. Nodes refuse the rest of what can be wrong in its file. */}}
{{- define "understudy.refusalsOfFleet" -}}
{{- if and .Values.applications .Values.applicationsConfigMap -}}
{{- fail "the applications are in one place: give applications or applicationsConfigMap" -}}
{{- end -}}
{{- $own := list -}}
{{- if ne .Values.applicationId "flights" -}}{{- $own = append $own "applicationId" -}}{{- end -}}
{{- if .Values.checkpoint.url -}}{{- $own = append $own "checkpoint.url" -}}{{- end -}}
{{- if ne .Values.checkpoint.path "flights" -}}{{- $own = append $own "checkpoint.path" -}}{{- end -}}
{{- if .Values.nodes.aliases -}}{{- $own = append $own "nodes.aliases" -}}{{- end -}}
{{- if $own -}}
{{- fail (printf "%s: these are of one query, and there are several: write them into the items of applications" (join ", " $own)) -}}
{{- end -}}
{{- if ne .Values.spark.kind "none" -}}
{{- fail "the queries of a fleet run elsewhere: set spark.kind=none" -}}
{{- end -}}
{{- $ids := dict -}}
{{- $places := dict -}}
{{- range .Values.applications -}}
{{- $place := trimSuffix "/" .checkpoint -}}
{{- if hasKey $ids .id -}}
{{- fail (printf "two applications have the id %s: give each an id of its own" .id) -}}
{{- end -}}
{{- if hasKey $places $place -}}
{{- fail (printf "the applications %s and %s have one checkpoint, %s: remove one of them" (get $places $place) .id .checkpoint) -}}
{{- end -}}
{{- if and (hasPrefix "/checkpoint/" .checkpoint) (not $.Values.checkpoint.volume.existingClaim) -}}
{{- fail (printf "the checkpoint of %s is on the shared volume: give checkpoint.volume.existingClaim" .id) -}}
{{- end -}}
{{- $_ := set $ids .id true -}}
{{- $_ = set $places $place .id -}}
{{- end -}}
{{- range .Values.checkpointRoots -}}
{{- if and (hasPrefix "/checkpoint/" (printf "%s/" .)) (not $.Values.checkpoint.volume.existingClaim) -}}
{{- fail (printf "the root %s is on the shared volume: give checkpoint.volume.existingClaim" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
