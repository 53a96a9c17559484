"""Lets parts of prometheus_client be imported without the HTTP server and client that the package brings along.

The package's own code imports http.server, urllib.request and wsgiref: a tenth of what a start of the proxy imports,
for functions that nobody here calls. Its modules do without. So the package is there before its code has run, which
it does as soon as somebody wants a name of the package itself.
"""

import sys
from importlib.util import find_spec, module_from_spec
from typing import Any, Final

_NAME: Final = "prometheus_client"


def prepare() -> None:
    """Put the package up for imports of its modules. Call it before anything has imported it."""
    spec = find_spec(_NAME)
    if _NAME in sys.modules or spec is None or spec.loader is None:
        return
    package, loader = module_from_spec(spec), spec.loader

    def completed(name: str) -> Any:
        if find_spec(f"{_NAME}.{name}") is not None:
            raise AttributeError(name)  # a module of it: it is imported by whoever asks
        vars(package).pop("__getattr__", None)
        loader.exec_module(package)
        return getattr(package, name)

    vars(package)["__getattr__"] = completed
    sys.modules[_NAME] = package
