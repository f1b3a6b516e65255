{{/* Secrets with certificates: of the routers for readers, then of nodes and of routers for each other. Empty: there is none. */}}
{{- define "understudy.readersSecret" -}}
{{- if .Values.tls.existingSecret -}}
{{- .Values.tls.existingSecret -}}
{{- else if .Values.tls.certManager.issuer.name -}}
{{- include "understudy.fullname" . }}-readers-tls
{{- end -}}
{{- end -}}

{{- define "understudy.nodePeerSecret" -}}
{{- if .Values.tls.peers.nodes.existingSecret -}}
{{- .Values.tls.peers.nodes.existingSecret -}}
{{- else if .Values.tls.certManager.issuer.name -}}
{{- include "understudy.fullname" . }}-node-tls
{{- end -}}
{{- end -}}

{{- define "understudy.routerPeerSecret" -}}
{{- if .Values.tls.peers.routers.existingSecret -}}
{{- .Values.tls.peers.routers.existingSecret -}}
{{- else if .Values.tls.certManager.issuer.name -}}
{{- include "understudy.fullname" . }}-router-tls
{{- end -}}
{{- end -}}

{{/* How the port of a component is spoken to: dict "root" $ "component" "node". */}}
{{- define "understudy.scheme" -}}
{{- $secret := ternary (include "understudy.nodePeerSecret" .root) (include "understudy.readersSecret" .root) (eq .component "node") -}}
{{- ternary "https" "http" (ne $secret "") -}}
{{- end -}}

{{/* The names by which pods of the cluster ask nodes and routers. Certificates have them, for Prometheus and the hook of nodes. */}}
{{- define "understudy.serverName" -}}
{{- printf "%s-%s" (include "understudy.fullname" .root) (ternary "nodes" "router" (eq .component "node")) -}}
{{- end -}}

{{/* Variables about certificates: dict "root" $ "component" "node". A node has one certificate for all who ask it. */}}
{{- define "understudy.tlsEnv" -}}
{{- if .root.Values.tls.externalTermination }}
- name: UNDERSTUDY_EXTERNAL_TLS_TERMINATION
  value: "true"
{{- end }}
{{- if eq .component "node" }}
{{- if include "understudy.nodePeerSecret" .root }}
- name: UNDERSTUDY_TLS_CERT_FILE
  value: /run/understudy/peer.crt
- name: UNDERSTUDY_TLS_KEY_FILE
  value: /run/understudy/peer.key
- name: UNDERSTUDY_PEER_CA_FILE
  value: /run/understudy/peer-ca.crt
{{- end }}
{{- if include "understudy.readersSecret" .root }}
# Whom the hook below trusts.
- name: UNDERSTUDY_CA_FILE
  value: /run/understudy/readers-ca.crt
{{- end }}
{{- else }}
{{- if include "understudy.readersSecret" .root }}
- name: UNDERSTUDY_TLS_CERT_FILE
  value: /run/understudy/readers.crt
- name: UNDERSTUDY_TLS_KEY_FILE
  value: /run/understudy/readers.key
{{- end }}
{{- if include "understudy.routerPeerSecret" .root }}
- name: UNDERSTUDY_PEER_CERT_FILE
  value: /run/understudy/peer.crt
- name: UNDERSTUDY_PEER_KEY_FILE
  value: /run/understudy/peer.key
- name: UNDERSTUDY_PEER_CA_FILE
  value: /run/understudy/peer-ca.crt
{{- end }}
{{- end }}
{{- end -}}

{{- define "understudy.hasCertificates" -}}
{{- if or (include "understudy.readersSecret" .) (include "understudy.nodePeerSecret" .) -}}yes{{- end -}}
{{- end -}}

{{/* The files that these variables name, as sources of a projected volume. */}}
{{- define "understudy.tlsSources" -}}
{{- $isNode := eq .component "node" -}}
{{- with ternary (include "understudy.nodePeerSecret" .root) (include "understudy.routerPeerSecret" .root) $isNode }}
- secret:
    name: {{ . }}
    items:
      - {key: tls.crt, path: peer.crt}
      - {key: tls.key, path: peer.key}
      - {key: ca.crt, path: peer-ca.crt}
{{- end }}
{{- with include "understudy.readersSecret" .root }}
- secret:
    name: {{ . }}
    items:
      {{- if $isNode }}
      - {key: ca.crt, path: readers-ca.crt}
      {{- else }}
      - {key: tls.crt, path: readers.crt}
      - {key: tls.key, path: readers.key}
      {{- end }}
{{- end }}
{{- end -}}
