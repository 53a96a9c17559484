"""The checks of `make test` one by one, each in its own environment: `nox -s tests`, `nox -s lint`, ...

`make test` runs the same commands in `.venv`; nox is for other Pythons (`nox -s tests -p 3.13`) and a clean slate.
"""

from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "imports", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.default_venv_backend = "venv"


def _install(session: nox.Session) -> None:
    """Install what requirements/test.lock pins, and the checkout: nothing is taken from an index without a hash."""
    session.install("--require-hashes", "-r", "requirements/test.lock")
    session.install("--no-deps", "--no-build-isolation", "-e", ".")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; as root, as they make network namespaces."""
    _install(session)
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    _install(session)
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check types."""
    _install(session)
    session.run("mypy")


@nox.session
def imports(session: nox.Session) -> None:
    """Check that no layer imports one above it."""
    _install(session)
    session.run("lint-imports")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure what docs/performance.md says; as root."""
    _install(session)
    session.run("python", "-m", "bench", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel and try it: in an environment without the tools of tests, the command has to start."""
    session.install("--require-hashes", "-r", "requirements/build.lock", "-r", "requirements/run.lock")
    with_what_is_here = ("--no-deps", "--no-build-isolation")
    session.run("python", "-m", "pip", "wheel", "--quiet", *with_what_is_here, "--wheel-dir", "dist", ".")
    session.install("--no-deps", "--force-reinstall", *map(str, Path("dist").glob("vipwire-*.whl")))
    session.run("vipwire", "version")
