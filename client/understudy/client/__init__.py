"""The Python client of nodes and routers: `understudy.Client`, and `understudy.AsyncClient` with the same surface.

`core/` decides without I/O; `transports/` carry bytes; `sync.py` and `aio.py` drive one by the other.
"""
