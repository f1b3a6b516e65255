"""The aligned source: several inputs in timestamp order, bounded, fair, and deterministic on replay."""
