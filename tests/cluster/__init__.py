"""The one-machine cluster: its pure parts without root, and the whole of it where there is root."""
