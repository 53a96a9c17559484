"""Which regular expressions are handed to HAProxy: those that PCRE reads, and reads as RE2 does."""

import warnings

import pytest

from vipwire_l7.gateway.plan.matching.expressions import Unsupported, check_expression


@pytest.mark.parametrize(
    "text",
    [
        r"/v[0-9]{1,3}/[a-z]{2,64}",
        r"(?:[a-z0-9-]{1,63}\.){1,8}org",
        r"[[:alpha:]]+[^[:^digit:]x]",
        r"[^]a]{1000}",
        r"\d{4}-\d{2}",
        r"a{x}|a{,5}",
    ],
)
def test_what_pcre_and_re2_share_is_taken(text: str) -> None:
    assert check_expression(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "(?:(?:a{255}){255}){255}",
        "((a{0,100}){0,100}){0,100}",
        "(?:[a-z][0-9]abcdef){1000}",
        "a{65536}",
        "a{1001}",
        r"\u0041",
        r"\U00000041",
        "[:alpha:]",
        "[[:alpha:]",
        "[[:foo:]]",
    ],
)
def test_what_haproxy_would_refuse_is_refused_at_once(text: str) -> None:
    with pytest.raises(Unsupported):
        check_expression(text)


@pytest.mark.parametrize("text", ["[[a]", "[0-9--a]", "[a&&b]", "[a||b]"])
def test_what_python_warns_of_is_taken_in_silence(text: str) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert check_expression(text) == text
    assert not said
