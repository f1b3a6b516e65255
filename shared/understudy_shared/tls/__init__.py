"""TLS of a service's own port and of its calls to nodes: certificates, the names in them, and errors.

`service_tls` holds the current state; `certificates` reads the files, `names` says who may call whom.
"""
