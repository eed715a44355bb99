"""The REST API's room. It may import `diflow` and `diflow.workflows`. Empty today."""
