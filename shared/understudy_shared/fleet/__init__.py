"""A fleet: one process that serves many applications, each whole, behind one dispatcher (decision 0085)."""
