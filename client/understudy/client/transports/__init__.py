"""Transports: sockets of the client's own."""
