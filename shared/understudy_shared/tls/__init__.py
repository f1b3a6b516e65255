"""TLS of a service's own port and of its calls to nodes: certificates, the names in them, and errors.

`service_tls` holds the current state; `certificates` reads the files; `trouble` says why a peer is refused, and who may
call whom.
"""
