"""`python -m vipwire` is `vipwire`."""

from vipwire.cli.start import start

if __name__ == "__main__":
    start()
