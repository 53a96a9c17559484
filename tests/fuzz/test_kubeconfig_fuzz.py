"""Whatever a kubeconfig says: a way to an API server, or a ConfigError that names the file; and nothing is run."""

import copy
import datetime as dt
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.kubeconfig import kubeconfig
from tests.fuzz.test_kube_fuzz import json_values, mutated

from vipwire.errors import ConfigError, DecodeError
from vipwire.kube.access.access import Access, build_access
from vipwire.kube.access.kubeconfig import parse_kubeconfigs
from vipwire.kube.errors import ApiError
from vipwire.kube.manifests.documents import MANIFESTS
from vipwire_up.api.bodies.parsing import parse_yaml

FILE: Final = "/no-such-folder/kubeconfig"
PEM: Final = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg=="
CLUSTER: Final = {"server": "https://192.0.2.1:6443", "tls-server-name": "a", "proxy-url": "http://192.0.2.2:3128"}
PLUGIN: Final = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "no-such-command",
    "args": ["a"],
    "env": [{"name": "A", "value": "b"}],
    "provideClusterInfo": True,
}
USERS: Final[tuple[dict[str, Any], ...]] = (
    {"token": "t"},
    {"tokenFile": "token"},
    {"username": "u", "password": "p"},
    {"exec": PLUGIN},
    {"client-certificate-data": PEM, "client-key-data": PEM},
    {"client-certificate": "a.pem", "client-key": "b.pem"},
    {"auth-provider": {"name": "x"}},
)
CLUSTERS: Final[tuple[dict[str, Any], ...]] = (
    CLUSTER,
    CLUSTER | {"insecure-skip-tls-verify": True},
    CLUSTER | {"certificate-authority-data": PEM},
    CLUSTER | {"certificate-authority": "ca.pem"},
    {"server": "192.0.2.1:8080"},
)
odd = st.one_of(
    json_values,
    st.text(max_size=30),
    st.binary(max_size=8),
    st.dates(),
    st.datetimes(),
    st.dictionaries(st.none() | st.integers() | st.dates() | st.booleans(), st.none(), max_size=2),
    st.sampled_from(
        [
            10**400,
            -(2**63) - 1,
            float("nan"),
            float("inf"),
            "x" * 100_000,
            "https://[::1",
            "https://a:99999",
            "https://[v1.x]:1",
            "http://\u2100.example",
            "https://user:word@host/path?query#part",
            "a\0b",
            "a\r\nb: c",
            "\ud800",
            "é",
            "////8=",
            "/",
            "..",
            "~",
            "{{",
            "",
            dt.date.min,
        ]
    ),
)


def accessed(*texts: str) -> Access | None:
    """Read texts as one kubeconfig, as far as the first request; None if it is refused in words that name a file."""
    try:
        return build_access(parse_kubeconfigs((text, Path(FILE)) for text in texts), None, {})
    except ConfigError as error:
        assert FILE in str(error)  # noqa: PT017  # both ways are right
        return None


def test_each_user_is_a_way_or_a_plain_refusal() -> None:
    """The sound ones are: so what is drawn begins with what is understood."""
    sound = [accessed(yaml.safe_dump(kubeconfig(CLUSTER, user))) is not None for user in USERS]
    assert sound == [True] * 4 + [False] * 3


changes = st.tuples(st.lists(st.integers(0, 20), min_size=1, max_size=7), odd)


@given(st.sampled_from(CLUSTERS), st.sampled_from(USERS), st.lists(changes, min_size=1, max_size=3))
def test_wrong_places_in_a_kubeconfig_are_refused_plainly(cluster: Any, user: Any, wrong: list[Any]) -> None:
    value: Any = copy.deepcopy(kubeconfig(cluster, user))
    for path, replacement in wrong:
        value = mutated(value, path, replacement) if all_sortable(value) else value
    accessed(yaml.dump(value))


@given(st.lists(st.tuples(st.sampled_from(sorted({*CLUSTERS[2], *CLUSTERS[3], "insecure-skip-tls-verify"})), odd)))
def test_any_fields_of_a_cluster_are_a_way_or_refused(fields: list[tuple[str, Any]]) -> None:
    accessed(yaml.dump(kubeconfig(CLUSTER | dict(fields), {})))


@given(st.lists(st.tuples(st.sampled_from(sorted({key for user in USERS for key in user})), odd)))
def test_any_fields_of_a_user_are_a_way_or_refused(fields: list[tuple[str, Any]]) -> None:
    accessed(yaml.dump(kubeconfig(CLUSTER, dict(fields))))


def all_sortable(value: Any) -> bool:
    """Tell whether all keys are words: only these can be put into an order."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and all_sortable(part) for key, part in value.items())
    return not isinstance(value, list) or all(map(all_sortable, value))


PIECES: Final = st.sampled_from(
    [
        *("a: &x ", "*x", "<<: *x", "[", "]", "{", "}", "- ", ": ", "\n", "  ", "---\n", "...\n", "!!binary x"),
        *("current-context: ", "clusters:\n", "- name: a\n", "  cluster: ", "  user: ", "\t", "'", '"', "? "),
        *('"\\uD800"', "2001-99-99", "!!set {a}", "!!omap [a: 1]", "0x", "1:60", ".nan", "%YAML 9.9\n", "\x85"),
        *("\ufeff", "\x00", "1e999", "!x y", "!!bool x", "!!int _", "!!float ''", "!!timestamp x"),
    ]
)


@given(st.lists(PIECES, max_size=25).map("".join))
def test_any_yaml_is_a_kubeconfig_or_refused(text: str) -> None:
    accessed(text)


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"certificate-authority-data": "é"}, {}),
        ({"certificate-authority": "a\0b"}, {}),
        ({"certificate-authority": "\ud800"}, {}),
        ({}, {"username": "\ud800"}),
        ({}, {"client-certificate-data": "é", "client-key-data": "é"}),
        ({}, {"client-certificate": "a\0", "client-key": "b"}),
        ({"server": "https://[::1"}, {}),
    ],
)
def test_words_that_are_no_paths_or_no_text_are_refused(cluster: dict[str, str], user: dict[str, str]) -> None:
    assert accessed(yaml.dump(kubeconfig(CLUSTER | cluster, user))) is None


TAGS: Final = ("users: !!bool x", "users: !!int ''", "users: !!float ''", "users: !!int _", "users: !!timestamp x")


@pytest.mark.parametrize("text", TAGS)
def test_a_manifest_whose_tags_do_not_fit_is_refused(text: str) -> None:
    with pytest.raises(DecodeError, match=r"line 1, column 8: .*tag"):
        MANIFESTS.read(text, "a.yaml")


@pytest.mark.parametrize("text", TAGS)
def test_a_body_whose_tags_do_not_fit_is_refused(text: str) -> None:
    with pytest.raises(ApiError, match="error decoding YAML"):
        parse_yaml(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "a: &x [*x]\nclusters: *x",
        "clusters: &x\n- name: a\n  cluster: *x",
        "current-context: 2001-99-99",
        "current-context: !!binary é",
        *TAGS,
        "{" * 5000,
        "current-context: " + "9" * 5000,
    ],
)
def test_texts_that_yaml_itself_stumbles_on(text: str) -> None:
    assert accessed(text) is None
