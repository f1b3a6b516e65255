"""The HTTP server of a service: the protocol with its limits, lookups without ASGI, the supervisor."""
