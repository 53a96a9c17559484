"""The checks of `make test` one by one, each in its own environment: `nox -s tests`, `nox -s lint`, ...

`make test` runs the same commands in `.venv`; nox is for other Pythons (`nox -s tests -p 3.13`) and a clean slate.
"""

from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "imports", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.default_venv_backend = "venv"


def _install(session: nox.Session, *groups: str) -> None:
    session.install("--upgrade", "pip>=25.1")  # the first that knows --group
    session.install("-e", ".", *(word for group in groups for word in ("--group", group)))


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests; as root, as they make network namespaces."""
    _install(session, "test")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    _install(session, "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check types; the tests' imports have to be there too."""
    _install(session, "test", "lint")
    session.run("mypy")


@nox.session
def imports(session: nox.Session) -> None:
    """Check that no layer imports one above it."""
    _install(session, "lint")
    session.run("lint-imports")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure what docs/performance.md says; as root."""
    _install(session, "test")
    session.run("python", "-m", "bench", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel and try it: in an environment with nothing else in it, the command has to start."""
    session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", ".")
    session.install("--force-reinstall", *map(str, Path("dist").glob("vipwire-*.whl")))
    session.run("vipwire", "version")
