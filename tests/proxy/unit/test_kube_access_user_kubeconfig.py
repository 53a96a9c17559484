"""Several kubeconfigs are one, as for kubectl: who says what, and where its paths lead."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from vipwire.errors import ConfigError
from vipwire.kube.access.kubeconfig import parse_kubeconfigs
from vipwire.kube.access.kubectl import KubeconfigFiles, find_kubectl_files


def write(path: Path, **groups: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(groups))
    return path


def clusters(**servers: str) -> list[dict[str, Any]]:
    return [{"name": name, "cluster": {"server": server}} for name, server in servers.items()]


def contexts(**pairs: str) -> list[dict[str, Any]]:
    return [{"name": name, "context": {"cluster": name, "user": user}} for name, user in pairs.items()]


def found(*paths: Path) -> KubeconfigFiles:
    got = find_kubectl_files({"KUBECONFIG": ":".join(map(str, paths)), "HOME": "/nowhere"})
    assert got is not None
    return got


def test_the_first_that_says_a_thing_says_all_of_it(tmp_path: Path) -> None:
    first = write(tmp_path / "1", clusters=clusters(home="http://192.0.2.1"), users=[{"name": "me", "user": {}}])
    second = write(
        tmp_path / "2",
        clusters=clusters(home="http://192.0.2.2", away="http://192.0.2.3"),
        users=[{"name": "me", "user": {"token": "of the second"}}],
        contexts=contexts(home="me", away="me"),
    )
    third = write(tmp_path / "3", **{"current-context": "home", "contexts": contexts(home="nobody")})
    fourth = write(tmp_path / "4", **{"current-context": "away"})
    notes: list[str] = []
    access = found(first, second, tmp_path / "none", third, fourth).access(notes.append, {})
    assert access.server == "http://192.0.2.1"
    assert asyncio.run(access.credential(0)).authorization == ""
    assert notes == [f"note: asking http://192.0.2.1, which {first} names ($KUBECONFIG)"]
    assert found(fourth, first, second, third).access(notes.append, {}).server == "http://192.0.2.3"


def test_paths_are_meant_from_the_folder_of_their_own_file(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b/token").write_text("of b")
    here = write(
        tmp_path / "a/config",
        **{"current-context": "c", "contexts": contexts(c="u"), "clusters": clusters(c="http://192.0.2.1")},
    )
    there = write(tmp_path / "b/config", users=[{"name": "u", "user": {"tokenFile": "token"}}])
    access = found(here, there).access(lambda _: None, {})
    assert asyncio.run(access.credential(0)).authorization == "Bearer of b"


def test_an_error_names_the_file_that_it_is_in(tmp_path: Path) -> None:
    whole = write(tmp_path / "a", **{"current-context": "c", "contexts": contexts(c="u")})
    authority = {"certificate-authority": "ca.crt"}
    rest = write(tmp_path / "b", clusters=[{"name": "c", "cluster": {"server": "https://192.0.2.1", **authority}}])
    user = write(tmp_path / "c", users=[{"name": "u", "user": {"client-certificate": "x"}}])
    for files, said in (
        ((rest, user), f"{rest}, {user}: current-context: is missing"),
        ((whole, rest), f"{whole}, {rest}: contexts[c].context.user: 'u' is not among the users (none)"),
        ((whole, rest, user), f"{user}: users[u].user.client-key: is missing"),
        ((whole, rest, write(tmp_path / "d", users=[{"name": "u"}])), f"{rest}: cluster.certificate-authority"),
        ((whole, write(tmp_path / "e", users=3)), f"{tmp_path}/e: users: Expected `array"),
    ):
        with pytest.raises(ConfigError) as caught:
            found(*files).access(lambda _: None, {})
        assert said in str(caught.value)


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a")
    assert found(path, path) == KubeconfigFiles((path,), "$KUBECONFIG")
    with pytest.raises(ConfigError, match=f"^{path}: current-context: is missing"):
        parse_kubeconfigs(((path.read_text(), path),))
