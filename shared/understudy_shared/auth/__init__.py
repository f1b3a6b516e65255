"""Access to a service: credentials, tokens of issuers, sessions, grants, and the audit log."""
