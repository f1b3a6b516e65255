"""The running of services by commands: their flags and settings, the progress of a start, the welcome."""
