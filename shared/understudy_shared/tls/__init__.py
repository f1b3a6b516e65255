"""TLS of a service's own port and of what it asks nodes: certificates, whom they name, and what went wrong.

`service_tls` is what a service holds; `certificates` reads the files, `names` says who may call whom.
"""
