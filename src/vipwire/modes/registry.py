"""Finds modes by name; `config.modes` lists them, one line each."""

from functools import cache
from importlib import import_module

from vipwire.config.configuration import Config
from vipwire.config.modes import find_registered, list_mode_names
from vipwire.modes.spec import Driver, ModeSpec


def find_spec(name: str) -> ModeSpec:
    """Return a mode's ModeSpec. Raise KeyError for a mode that is not registered."""
    found = find_registered(name)
    if not isinstance(found, ModeSpec):
        raise TypeError(f"the registered object of mode {name} is not a ModeSpec")
    return found


def find_selected_mode(config: Config) -> ModeSpec:
    return find_spec(config.proxy_mode)


def list_specs() -> tuple[ModeSpec, ...]:
    """Return all modes, the default first."""
    return tuple(map(find_spec, list_mode_names()))


@cache
def load_driver(spec: ModeSpec) -> Driver:
    found = import_module(spec.driver).DRIVER
    if not isinstance(found, Driver):
        raise TypeError(f"DRIVER of {spec.driver} is not a Driver")
    return found
