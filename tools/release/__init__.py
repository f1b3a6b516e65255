"""`make release-check`: everything that must hold before a version is tagged."""
