"""The server: the REST API and the status page.

    http   connections, limits, TLS, request frame, errors. It knows no jobs
    api    authentication, authorisation, routes, and the cache they read
    page   the status page

`service` connects them; all of them use `settings` and `telemetry`.
"""
