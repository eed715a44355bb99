"""The server: the REST API and the status page.

    http   connections, their limits, TLS, frames, errors. It knows no jobs
    api    who may ask, what is asked and answered, and the cache behind it
    page   the status page

`service` puts them together; `settings` and `telemetry` are for all of them.
"""
