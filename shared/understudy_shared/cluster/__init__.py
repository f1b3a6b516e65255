"""What nodes and routers know of each other: who lives, what they said, what is remembered on disk."""
