"""Reads the YAML of a file that other programs write, such as a kubeconfig. Pure."""

from typing import Any

import yaml

# A tag that does not fit its value (`!!bool x`, `!!timestamp x`) raises what the conversion raises.
_NOT_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)


def load_yaml(text: str | bytes) -> Any:
    """Read one document. Raise ValueError, with the place where that is known."""
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{where}not YAML: {error.problem}") from error
    except _NOT_YAML as error:
        raise ValueError(f"not YAML: {error}") from error
