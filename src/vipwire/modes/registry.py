"""Finds modes by name; `config.modes` lists them, one line each."""

from functools import cache
from importlib import import_module

from vipwire.config.configuration import Config
from vipwire.config.modes import find_registered, mode_names
from vipwire.modes.spec import Driver, ModeSpec


def spec_of(name: str) -> ModeSpec:
    """Return a mode's ModeSpec. Raise KeyError for a mode that is not registered."""
    found = find_registered(name)
    if not isinstance(found, ModeSpec):
        raise TypeError(f"the registered object of mode {name} is not a ModeSpec")
    return found


def selected_mode(config: Config) -> ModeSpec:
    return spec_of(config.proxy_mode)


def list_specs() -> tuple[ModeSpec, ...]:
    """Return all modes, the default first."""
    return tuple(map(spec_of, mode_names()))


@cache
def driver_of(spec: ModeSpec) -> Driver:
    found = import_module(spec.driver).DRIVER
    if not isinstance(found, Driver):
        raise TypeError(f"DRIVER of {spec.driver} is not a Driver")
    return found
