"""Transports over the client's own sockets."""
