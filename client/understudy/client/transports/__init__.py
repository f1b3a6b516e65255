"""Transports: sockets of the client's own by default, httpx as the other choice."""
