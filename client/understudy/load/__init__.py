"""A load of lookups against a server, for `understudy bench`."""
