"""Many applications in one router process: each has a whole router, behind one dispatcher (decision 0085)."""
