"""`python -m diflow` is the same as `diflow`."""

from diflow.cli import run

if __name__ == "__main__":
    run()
