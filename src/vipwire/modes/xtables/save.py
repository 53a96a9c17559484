"""Parses the output of iptables-save into chains and rules. Pure; a line that does not parse raises DecodeError."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from vipwire.errors import DecodeError

Chains: TypeAlias = Mapping[str, Sequence[str]]
"""The chains of a table, each with its rules in order, without `-A CHAIN`."""


class ChainName(NamedTuple):
    """A chain of a table."""

    table: str
    chain: str


BUILT_IN: Final = frozenset({"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"})
"""The built-in chains of all tables."""

_TARGET: Final = re.compile(r"(?:^| )-[jg] (\S+)")
_COMMENT: Final = re.compile(r'--comment (?:"(?:[^"\\]|\\.)*"|\S+)')


def read_tables(text: str) -> dict[str, dict[str, list[str]]]:
    """Parse one or several tables, without counters."""
    tables: dict[str, dict[str, list[str]]] = {}
    chains: dict[str, list[str]] = {}
    rules: list[str] = []
    current = None
    for line in text.splitlines():
        if line.startswith("-A "):
            _, chain, rule = (*line.split(" ", 2), "")[:3]
            if chain != current:
                if chain not in chains:
                    raise build_undeclared_error(chain, line)
                current, rules = chain, chains[chain]
            rules.append(normalize_rule(rule))
        elif line.startswith(":") and tables:
            chains[line[1:].partition(" ")[0]] = []
        elif line.startswith("*"):
            chains = tables.setdefault(line[1:].strip(), {})
            current = None
        elif line and not line.startswith("#") and line != "COMMIT":
            raise build_unknown_line_error(line)
    return tables


def normalize_rule(printed: str) -> str:
    """Return a rule as the tool reads it: libxt_nfacct.c prints two spaces in one place, and reads one."""
    return printed.replace("--nfacct-name  ", "--nfacct-name ") if "nfacct" in printed else printed


def build_undeclared_error(chain: str, line: str) -> DecodeError:
    return DecodeError(f"iptables-save: a rule of the undeclared chain {chain!r}: {line!r}")


def build_unknown_line_error(line: str) -> DecodeError:
    return DecodeError(f"iptables-save: neither a chain nor a rule of a table: {line!r}")


def read_table(text: str) -> dict[str, list[str]]:
    return next(iter(read_tables(text).values()), {})


def find_rule_target(rule: str) -> str:
    """Return the target of a jump or goto; "" if the rule only counts."""
    found = _TARGET.search(_COMMENT.sub("", rule) if "--comment" in rule else rule)
    return found[1] if found else ""
