"""The carriers of messages between processes: `Bus` moves bytes, `Gossip` gives them names and types."""
