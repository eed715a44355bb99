"""HTTP as the server speaks it: connections, limits, TLS, frames, errors. It knows no jobs."""
