"""Laws of the configuration: what is written is what is read."""

import dataclasses
from typing import Any

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from vipwire.config.configuration import Config, fill_dependent_fields
from vipwire.config.file import dump_config, read_config
from vipwire.config.flags import build_config, parse_flags
from vipwire.config.kinds import ModuleVerbosity, ValueKind, format_duration, parse_duration
from vipwire.config.schema import Section, Setting

_NANOSECONDS = st.integers(min_value=-(2**53), max_value=2**53)  # exact as float seconds up to rounding
_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
_VALUES = {
    ValueKind.STRING: _TEXT,
    ValueKind.BOOL: st.booleans(),
    ValueKind.INT: st.integers(-(2**31), 2**31 - 1),
    ValueKind.FLOAT: st.floats(0.001, 1e6),
    ValueKind.DURATION: st.integers(-(10**9), 10**9).map(lambda milliseconds: milliseconds / 1e3),
    ValueKind.STRINGS: st.lists(_TEXT, max_size=3).map(tuple),
    ValueKind.GATES: st.dictionaries(_TEXT, st.booleans(), max_size=3).map(
        lambda gates: tuple(sorted(gates.items()))
    ),
    ValueKind.QUANTITY: st.sampled_from(["0", "512", "64Ki", "1M", "1.5Gi"]),
    ValueKind.VMODULE: st.lists(st.builds(ModuleVerbosity, _TEXT, st.integers(0, 10)), max_size=3).map(tuple),
}


@given(_NANOSECONDS)
@example(4503599627370491)
def test_reading_a_printed_duration_gives_it_back(nanoseconds: int) -> None:
    seconds = nanoseconds / 1e9
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.lists(st.tuples(st.integers(0, 1000), st.sampled_from(["h", "m", "s", "ms", "us", "ns"])), min_size=1))
def test_a_duration_is_the_sum_of_its_terms(terms: list[tuple[int, str]]) -> None:
    total = parse_duration("".join(f"{count}{unit}" for count, unit in terms))
    each = sum(parse_duration(f"{count}{unit}") for count, unit in terms)
    assert abs(total - each) <= 1e-9 * max(1.0, each)


def _sections(kind: type[Section]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: _values(row) for name, row in kind.settings.items() if row.in_file})


def _values(row: Setting) -> st.SearchStrategy[Any]:
    """Make values of a field; Go's zero value is the default where there is no pointer, so it is left out there."""
    if row.kind is ValueKind.SECTION:
        return _sections(type(row.default))
    return _VALUES[row.kind].map(lambda value: value or row.default)


@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking sixty fields takes minutes
@given(_sections(Config))
def test_reading_a_written_configuration_gives_it_back(config: Config) -> None:
    explicit = frozenset({"healthzBindAddress", "metricsBindAddress"})
    expected = dataclasses.replace(
        fill_dependent_fields(dataclasses.replace(config, explicit=explicit)), explicit=frozenset()
    )
    loaded = read_config(dump_config(expected), "written.yaml")
    assert not loaded.warnings
    assert dataclasses.replace(loaded.config, config_file="", explicit=frozenset()) == expected


@given(st.sampled_from(["", "iptables", "ipvs", "nftables", "userspace"]), st.integers(1, 60), st.integers(1, 60))
def test_flags_written_to_a_file_and_read_again_mean_the_same(mode: str, period: int, ipvs_period: int) -> None:
    arguments = [f"--proxy-mode={mode}", f"--iptables-sync-period={period}s", f"--ipvs-sync-period={ipvs_period}s"]
    config = build_config(parse_flags(arguments)).config
    again = read_config(dump_config(config)).config
    assert again.sync == config.sync
