"""The policy `fair` and its parts: shares, orders, claims, victims, reasons."""
