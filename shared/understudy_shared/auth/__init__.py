"""Who may ask: credentials, tokens of issuers, sessions, what each may do, and the audit log."""
