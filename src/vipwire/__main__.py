"""`python -m vipwire` is `vipwire`."""

from vipwire.cli.main import main

if __name__ == "__main__":
    main(prog_name="vipwire")
