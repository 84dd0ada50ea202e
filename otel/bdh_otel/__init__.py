"""Local-first OpenTelemetry: spans go to a SQLite store, and from there to any backend."""
