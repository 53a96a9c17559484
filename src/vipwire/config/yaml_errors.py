"""Names what PyYAML raises for a text that it cannot read. Pure.

Its errors are YAMLError where the syntax is wrong. A tag that does not fit its value (`!!bool x`, `!!timestamp x`)
raises whatever the conversion raises, and an alias to itself ends in a RecursionError.
"""

from typing import Final

import yaml

NOT_YAML: Final = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
