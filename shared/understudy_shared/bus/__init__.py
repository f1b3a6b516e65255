"""What carries messages between processes: `Bus` moves bytes, `Gossip` gives them names and types.

`redis_bus` is the real one; `local_bus` serves one process and is held to the same contract.
"""
