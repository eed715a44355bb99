"""The texts and tables that commands print."""
