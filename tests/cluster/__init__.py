"""The one-machine cluster: its pure parts, and whole clusters where the tests run as root."""
