"""What a service says of itself while it runs: logs, spans, metric families."""
