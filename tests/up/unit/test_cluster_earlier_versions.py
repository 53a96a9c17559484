"""Machines, servers and commands of several versions share a cluster: what they say to each other stays as it is.

An API server or a machine of d4ebf94f beside one of today, either way round and both at one etcd, says what stands
here: the requests below /vipwire.io/v1/, and the records in Secrets. Other requests are Kubernetes' own. Who changes
a line has to keep it for earlier versions, and says so here.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from tests.up.unit.test_cluster_joining import admin, words_for
from tests.up.unit.up_here import up

from vipwire_up.api.serving.authorization import User
from vipwire_up.joining import join as joining
from vipwire_up.joining.enrolment import Enrolment
from vipwire_up.joining.manage import delete_token, remove_machine, report_departure
from vipwire_up.joining.membership import Folder

pytestmark = pytest.mark.slow
SAID = """
system:anonymous: authority {} -> {certificate: CN=vipwire-ca}
system:bootstrap:TOKEN: certificates {request: CN=system:node:n2} -> {authority: CN=vipwire-ca, certificate: CN=system:node:n2,O=system:nodes}
system:node:n2: certificates {request: CN=ingress:n2} -> {authority: CN=vipwire-ca, certificate: CN=ingress:n2,O=vipwire:ingress}
system:node:n2: certificates {request: CN=system:node:n2} -> {authority: CN=vipwire-ca, certificate: CN=system:node:n2,O=system:nodes}
system:node:n2: departures {certificates: [CN=system:node:n2,O=system:nodes, CN=ingress:n2,O=vipwire:ingress]} -> {node: n2}
kubernetes-admin: departures {node: n3} -> {node: n3}
"""  # noqa: E501
GIVEN = """
type: vipwire.io/machine
given: SERIAL TIME
given: SERIAL TIME
given: SERIAL TIME
origins: SERIAL ingress:n2 TOKEN UID TIME UID
origins: SERIAL system:node:n2 TOKEN UID TIME UID
origins: SERIAL system:node:n2 TOKEN UID TIME UID
"""
SHAPES = {
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "UID",
    r"\b\d{4}-\d\d-\d\dT[0-9:.]+Z": "TIME",
    r"\b[0-9A-F]{30,}\b": "SERIAL",
}


def shown(value: Any) -> str:
    """Write a value of JSON, with certificates and requests by their subjects."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {shown(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    for load in (x509.load_pem_x509_certificate, x509.load_pem_x509_csr):
        try:
            return load(str(value).encode()).subject.rfc4514_string()
        except ValueError:
            continue
    return str(value)


def shaped(text: str, token: str) -> str:
    for pattern, name in SHAPES.items():
        text = re.sub(pattern, name, text)
    return text.replace(token.partition(".")[0], "TOKEN")


async def test_what_machines_and_servers_say_is_what_earlier_versions_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, answer = list[str](), Enrolment.answer

    async def heard(self: Enrolment, user: User, path: str, body: bytes) -> dict[str, Any]:
        told = await answer(self, user, path, body)
        sent = shown(json.loads(body) if body else {})
        said.append(f"{user.name}: {path.rpartition('/')[2]} {sent} -> {shown(told)}")
        return told

    monkeypatch.setattr(Enrolment, "answer", heard)
    async with up(tmp_path / "up") as here:
        token, pinned = await words_for(here, tmp_path / "up")
        said.clear()
        folder = Folder(tmp_path / "there")
        member = await joining.join_cluster(folder, here.url, token, pinned, "n2")
        await joining.request_certificate(folder, folder.node, folder.access_to(here.url), "n2")
        _, secret = await here.ask("GET", "/api/v1/namespaces/kube-system/secrets/vipwire-machine-n2")
        await report_departure(folder, member)
        await remove_machine(admin(tmp_path / "up"), "n3")
        await delete_token(admin(tmp_path / "up"), token, keep_machines=False)
    rows = [(name, base64.b64decode(text).decode()) for name, text in sorted(secret["data"].items())]
    lines = sorted(f"{name}: {line}" for name, text in rows for line in text.splitlines())
    given = "\n".join((f"type: {secret['type']}", *lines))
    assert shaped("\n".join(said), token) == SAID.strip()
    assert sorted(shaped(given, token).splitlines()) == sorted(GIVEN.strip().splitlines())
