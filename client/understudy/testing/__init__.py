"""A server for tests of programs that read state: without Spark and Redis.

    from understudy.testing import Server, Store

    with Server({"aircraft": Store(key={"tail": "string"}, value={"flights": "long"})}) as server:
        server.commit({"aircraft": {"N14228": {"flights": 3}}})
        server.client().store("aircraft").get("N14228").value

It is the service of `understudy serve` over a small checkpoint that it writes, and needs what that needs: the extra
`node`.
"""

from understudy.testing.server import Application as Application
from understudy.testing.server import Server as Server
from understudy.testing.server import Store as Store
from understudy.testing.server import Trouble as Trouble

__all__ = ["Application", "Server", "Store", "Trouble"]
