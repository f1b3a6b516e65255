"""The HTTP server of a service: the protocol with its limits, and lookups without ASGI."""
