"""HTTP: connections, limits, TLS, request frame, errors. It knows no jobs."""
