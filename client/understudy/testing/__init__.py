"""A server for tests of programs that read state: without Spark and Redis.

    from understudy.testing import Server, StoreDefinition

    with Server({"aircraft": StoreDefinition(key={"tail": "string"}, value={"flights": "long"})}) as server:
        server.commit({"aircraft": {"N14228": {"flights": 3}}})
        server.client().store("aircraft").get("N14228").value

It is the service of `understudy serve` over a small checkpoint that it writes, and needs what that needs: the extra
`node`.
"""

from understudy.testing.server import ServedApplication as ServedApplication
from understudy.testing.server import Server as Server
from understudy.testing.server import Trouble as Trouble
from understudy.testing.stores import StoreDefinition as StoreDefinition

__all__ = ["ServedApplication", "Server", "StoreDefinition", "Trouble"]
