"""The floor below everything: errors, words, clocks, masking and other small parts without knowledge of a service."""
