//! The HTTP API of the management plugin: thin, tolerant of versions, and careful with passwords.
