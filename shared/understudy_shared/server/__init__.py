"""How a service listens and answers: the protocol with its limits, lookups without ASGI, the supervisor."""
