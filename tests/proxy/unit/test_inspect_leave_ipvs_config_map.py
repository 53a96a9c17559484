"""Where no kube-proxy runs here, its ConfigMap is asked for at the API server; what goes wrong is one line."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from vipwire.config.configuration import Config
from vipwire.errors import ConfigError
from vipwire.inspect.check.ipvs_facts import read_config_map

PATH = "/api/v1/namespaces/kube-system/configmaps/kube-proxy"
CONF = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n"


ANSWERS = {PATH: json.dumps({"data": {"config.conf": CONF}})}


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = ANSWERS.get(self.path, "{}").encode()
        self.send_response(200 if self.path in ANSWERS else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def master() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_the_config_map_is_read(master: str) -> None:
    found = read_config_map(Config(master=master))
    assert found is not None
    assert (found.mode, found.where) == ("ipvs", "the ConfigMap kube-system/kube-proxy")


def test_an_answer_of_another_kind_is_told(master: str) -> None:
    with pytest.raises(ConfigError, match=r"the ConfigMap kube-system/kube-proxy: http://\S+ answers 404"):
        read_config_map(Config(master=f"{master}/elsewhere"))


def test_a_server_that_is_away_is_told() -> None:
    with pytest.raises(ConfigError, match=r"the ConfigMap kube-system/kube-proxy: .*127\.0\.0\.1"):
        read_config_map(Config(master="http://127.0.0.1:9"))


def test_with_manifests_no_server_is_asked() -> None:
    assert read_config_map(Config(manifests=("/nowhere",))) is None
