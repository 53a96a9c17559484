"""TLS: certificates by SNI, HTTP/2, redirects, changes of Secrets without a reload, and Secrets that are no good."""

import asyncio
import datetime as dt
import ssl
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from tests.l7.ingress.site import Site, certificate, in_site, ingress, rule, secret, tls_secret

from vipwire_l7.run.default_certificate import make_certificate

pytestmark = pytest.mark.haproxy

POD = "127.0.0.11"


async def subject_of(here: Site, host: str) -> str:
    """Shake hands for a host and tell whose certificate came."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection("127.0.0.1", here.https, ssl=context, server_hostname=host)
    try:
        raw = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return str(x509.load_der_x509_certificate(raw).subject.rfc4514_string()).removeprefix("CN=")
    finally:
        writer.close()
        await writer.wait_closed()


async def two_sites(here: Site) -> None:
    await here.pods("web", POD)
    here.put(tls_secret("a", certificate("a.example.com")), tls_secret("wild", certificate("*.wild.example.com")))
    here.put(ingress("a", rule("a.example.com", "/"), tls=[{"hosts": ["a.example.com"], "secretName": "a"}]))
    wild = [{"hosts": ["*.wild.example.com"], "secretName": "wild"}]
    here.put(ingress("wild", rule("*.wild.example.com", "/"), tls=wild))
    await here.settled()


@in_site()
async def test_the_certificate_is_chosen_by_sni(here: Site) -> None:
    await two_sites(here)
    assert await subject_of(here, "a.example.com") == "a.example.com"
    assert await subject_of(here, "b.wild.example.com") == "*.wild.example.com"
    assert await subject_of(here, "elsewhere.org") == "vipwire default certificate"


@in_site()
async def test_http2_and_http1_over_tls_that_curl_verifies(here: Site, tmp_path: Path) -> None:
    await two_sites(here)
    authority = tmp_path / "a.pem"
    pem = certificate("c.example.com")
    authority.write_text(pem.partition("-----BEGIN PRIVATE KEY-----")[0])
    here.put(tls_secret("c", pem))
    here.put(ingress("c", rule("c.example.com", "/"), tls=[{"hosts": ["c.example.com"], "secretName": "c"}]))
    await here.settled()
    for flag, version in (("--http2", "2"), ("--http1.1", "1.1")):
        answer = await here.curl("https://c.example.com/x", flag, "--no-insecure", "--cacert", str(authority))
        assert (answer.code, answer.version) == (200, version)
        assert answer.seen["headers"]["x-forwarded-proto"] == "https"


@in_site()
async def test_http_is_sent_to_https_where_there_is_a_certificate(here: Site) -> None:
    await two_sites(here)
    off = {"vipwire.io/ssl-redirect": "false"}
    tls = [{"hosts": ["off.example.com"], "secretName": "a"}]
    here.put(ingress("off", rule("off.example.com", "/"), annotations=off, tls=tls))
    here.put(ingress("plain", rule("plain.example.com", "/")))
    force = {"nginx.ingress.kubernetes.io/force-ssl-redirect": "true"}
    here.put(ingress("force", rule("force.example.com", "/"), annotations=force))
    await here.settled()
    answer = await here.curl("http://a.example.com/x?y=z")
    assert (answer.code, answer.headers["location"]) == (308, f"https://a.example.com:{here.https}/x?y=z")
    assert await here.codes_of("off", "plain", "force") == {"off": 200, "plain": 200, "force": 308}


@in_site()
async def test_a_secret_that_changes_is_served_at_once_without_a_reload(here: Site) -> None:
    await two_sites(here)
    here.put(tls_secret("a", certificate("renewed.example.com")))
    await here.settled()
    assert await subject_of(here, "a.example.com") == "renewed.example.com"
    here.put(tls_secret("late", certificate("late.example.com")))
    tls = [{"hosts": ["late.example.com"], "secretName": "late"}]
    here.put(ingress("late", rule("late.example.com", "/")))
    await here.settled()
    before = len(here.reloads)
    here.put(
        ingress("late", rule("late.example.com", "/"), annotations={"vipwire.io/ssl-redirect": "false"}, tls=tls)
    )
    await here.settled()
    assert await subject_of(here, "late.example.com") == "late.example.com"
    here.remove("Ingress", "late")
    await here.settled()
    assert await subject_of(here, "late.example.com") == "vipwire default certificate"
    assert len(here.reloads) == before


def broken() -> dict[str, dict[str, str]]:
    """Make Secrets that are no good, each with what is said about it."""
    good, other = certificate("a.example.com"), certificate("b.example.com")
    marker = "-----BEGIN PRIVATE KEY-----"
    old = make_certificate(dt.datetime(2001, 1, 1, tzinfo=dt.UTC), "old.example.com")
    early = make_certificate(dt.datetime(2035, 1, 1, tzinfo=dt.UTC), "early.example.com")
    halves = {
        name: pem.partition(marker)
        for name, pem in (("good", good), ("other", other), ("old", old), ("early", early))
    }
    pairs = {
        "is not the key of the certificate": ("good", "other"),
        "has expired on 2010-12-30": ("old", "old"),
        "is not valid before 2034-12-31": ("early", "early"),
    }
    made = {
        text: {"tls.crt": halves[crt][0], "tls.key": marker + halves[key][2]} for text, (crt, key) in pairs.items()
    }
    made["is no certificate in PEM"] = {
        "tls.crt": "nonsense\n\nset ssl cert x",
        "tls.key": marker + halves["good"][2],
    }
    made["has no tls.key"] = {"tls.crt": halves["good"][0]}
    return made


@in_site()
async def test_secrets_that_are_no_good_cost_only_their_certificate(here: Site) -> None:
    await two_sites(here)
    for number, (_, data) in enumerate(broken().items()):
        here.put(secret(f"s{number}", **data))
        tls = [{"hosts": [f"h{number}.example.com"], "secretName": f"s{number}"}]
        here.put(ingress(f"i{number}", rule(f"h{number}.example.com", "/"), tls=tls))
    await here.settled()
    for number, text in enumerate(broken()):
        assert f"default/i{number}: spec.tls[0].secretName: default/s{number}:" in here.problems
        assert text in here.problems
        assert await subject_of(here, f"h{number}.example.com") == "vipwire default certificate"
        assert (await here.curl(f"https://h{number}.example.com/")).code == 200
    assert await subject_of(here, "a.example.com") == "a.example.com"


def weak(name: str) -> str:
    """Make what can be read, and is too weak for HAProxy's OpenSSL, which asks for 112 bits: P-192 has 96."""
    key = ec.generate_private_key(ec.SECP192R1())
    subject, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    times = builder.not_valid_before(now).not_valid_after(now + dt.timedelta(days=9000))
    made = times.serial_number(x509.random_serial_number()).sign(key, hashes.SHA256())
    written = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (made.public_bytes(Encoding.PEM) + written).decode()


@pytest.mark.parametrize("from_the_start", [True, False])
@in_site()
async def test_a_certificate_that_haproxy_refuses_costs_only_itself(here: Site, *, from_the_start: bool) -> None:
    if not from_the_start:
        await two_sites(here)
    here.put(tls_secret("weak", weak("weak.example.com")))
    tls = [{"hosts": ["weak.example.com"], "secretName": "weak"}]
    here.put(ingress("weak", rule("weak.example.com", "/"), tls=tls))
    await two_sites(here)
    assert await subject_of(here, "weak.example.com") == "vipwire default certificate"
    assert await subject_of(here, "a.example.com") == "a.example.com"
    assert (await here.curl("https://weak.example.com/")).code == 200
    told = "default/weak: spec.tls[0].secretName: default/weak: HAProxy refuses the certificate; its hosts get"
    assert f"{told} the default: unable to load" in here.problems
    here.put(tls_secret("weak", certificate("strong.example.com")))
    await here.settled()
    assert await subject_of(here, "weak.example.com") == "strong.example.com"
    assert here.problems == ""
    assert any("a command failed" in reason for reason in here.reloads) is not from_the_start


@pytest.mark.parametrize("scheme", ["ws", "wss"])
@in_site()
async def test_a_websocket_goes_through(here: Site, scheme: str) -> None:
    await here.pods("web", POD)
    here.put(ingress("web", rule("a.example.com", "/")))
    await here.settled()
    port = here.https if scheme == "wss" else here.http
    async with aiohttp.ClientSession() as session:
        url = f"{scheme}://127.0.0.1:{port}/chat"
        async with session.ws_connect(url, headers={"Host": "a.example.com"}, ssl=False) as talk:
            await talk.send_str("hello")
            assert await talk.receive_str(timeout=20) == "echo hello"
