"""Which API server `vipwire ingress` asks: that of a flag, kubectl's, the Pod's, or that of this machine."""

from pathlib import Path

import pytest
from tests.fakes.kubeconfig import write_kubeconfig

from vipwire.errors import ConfigError
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.run.app import Options, find_api_server


def options(folder: Path, **more: object) -> Options:
    return Options(folder, Layout(str(folder), f"{folder}/haproxy.sock"), **more)  # type: ignore[arg-type]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VIPWIRE_DATA_DIR", str(tmp_path / "data"))
    for folder in (".kube", "data"):
        (tmp_path / folder).mkdir()
    return tmp_path


def server_of(options_: Options) -> str:
    access = find_api_server(options_)
    assert access is not None
    return str(access.server)


def test_flags_come_first_then_kubectls_then_this_machines(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        find_api_server(options(home))
    write_kubeconfig(home / "data/ingress.kubeconfig", "http://192.0.2.1")
    assert server_of(options(home)) == "http://192.0.2.1"
    write_kubeconfig(home / ".kube/config", "http://192.0.2.2")
    assert server_of(options(home)) == "http://192.0.2.2"
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(home / "mine", "http://192.0.2.3")))
    assert server_of(options(home)) == "http://192.0.2.3"
    flag = write_kubeconfig(home / "flag", "http://192.0.2.4")
    assert server_of(options(home, kubeconfig=flag)) == "http://192.0.2.4"
    assert server_of(options(home, master="http://192.0.2.5")) == "http://192.0.2.5"
    assert find_api_server(options(home, manifests=(home,))) is None


def test_the_admins_kubeconfig_of_this_machine_is_not_taken(home: Path) -> None:
    write_kubeconfig(home / "data/admin.kubeconfig")
    with pytest.raises(ConfigError):
        find_api_server(options(home))
