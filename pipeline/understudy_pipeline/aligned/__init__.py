"""The aligned source: several inputs in timestamp order, bounded and fair, and the same again when read again."""
