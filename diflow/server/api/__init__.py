"""The REST API: authentication, authorisation, routes, and the cache that they read."""
