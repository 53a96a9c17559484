"""Makes modules of prometheus_client importable without the HTTP server and client that the package imports.

The package's own code imports http.server, urllib.request and wsgiref, a tenth of all imports at the proxy's start,
which vipwire does not use. So `prepare` installs the package without running its code, which runs at the first use of
a name of the package.
"""

import sys
from importlib.util import find_spec, module_from_spec
from typing import Any, Final

_NAME: Final = "prometheus_client"


def prepare() -> None:
    """Install the package for imports of its modules. Call this before any other import of it."""
    spec = find_spec(_NAME)
    if _NAME in sys.modules or spec is None or spec.loader is None:
        return
    package, loader = module_from_spec(spec), spec.loader

    def completed(name: str) -> Any:
        if find_spec(f"{_NAME}.{name}") is not None:
            raise AttributeError(name)  # a module of the package: the import system loads it
        vars(package).pop("__getattr__", None)
        loader.exec_module(package)
        return getattr(package, name)

    vars(package)["__getattr__"] = completed
    sys.modules[_NAME] = package
