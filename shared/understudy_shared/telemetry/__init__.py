"""Telemetry of a running service: logs, spans, metric families."""
