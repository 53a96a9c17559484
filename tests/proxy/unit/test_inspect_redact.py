"""What is left out of an archive for a bug report."""

import json

import pytest

from vipwire.inspect.sysdump.redact import LEFT_OUT, redact_object, redact_text

PLANTED = "hunter2hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"VIPWIRE_TOKEN={PLANTED}",
        f"vipwire join https://10.0.0.1:6443 --token {PLANTED} --ca-hash x",
        f"--exec-password={PLANTED}",
        f'{{"clientSecret": "{PLANTED}"}}',
        f"example.com/api-key: {PLANTED}",
        f"Authorization: Bearer {PLANTED}",
        f"https://ann:{PLANTED}@10.0.0.1:6443",
        f"user ann password {PLANTED}",
        f"-----BEGIN EC PRIVATE KEY-----\n{PLANTED}\n-----END EC PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{PLANTED}",
    ],
)
def test_what_has_the_name_or_form_of_a_secret_is_left_out(text: str) -> None:
    assert PLANTED not in redact_text(text)
    assert LEFT_OUT in redact_text(text)


@pytest.mark.parametrize(
    "secret",
    ["abcdef.0123456789abcdef", "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrIn0.c2ln", "0123456789abcdef" * 3, "aB3" * 15],
)
def test_tokens_are_known_by_their_form(secret: str) -> None:
    assert secret not in redact_text(f"the client sent {secret} today")


def test_known_secrets_are_left_out_wherever_they_are() -> None:
    assert redact_text("path /a/s3cret99/b", ["s3cret99"]) == f"path /a/{LEFT_OUT}/b"


@pytest.mark.parametrize(
    "text",
    [
        'add element ip vipwire service-ips { 10.96.0.10 . tcp . 80 comment "default/web:http" : 1:5 }',
        "-A KUBE-SVC-ERIFXISQEP7F7OF4 -m statistic --mode random --probability 0.5 -j KUBE-SEP-XYZ",
        "tokenFile: /var/lib/vipwire/view-token",
        "secretName: web-tls",
        "the token expired",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


def test_objects_lose_other_annotations_and_values_of_headers() -> None:
    value = {
        "metadata": {
            "annotations": {"vipwire.io/algorithm": "maglev", "example.com/a": PLANTED},
            "managedFields": [PLANTED],
        },
        "spec": {"set": [{"name": "X-A", "value": PLANTED}], "secretName": "tls", "apiToken": PLANTED},
    }
    made = redact_object(value)
    assert PLANTED not in str(made)
    assert made["metadata"]["annotations"]["vipwire.io/algorithm"] == "maglev"
    assert made["spec"]["secretName"] == "tls"


def test_json_stays_json() -> None:
    inner = json.dumps({"password": PLANTED})
    value = {"a": f"token={PLANTED}", "clientSecret": PLANTED, "b": [f"--token {PLANTED}", "c"], "d": inner}
    made = json.loads(redact_text(json.dumps(value)))
    assert PLANTED not in str(made)
    assert made["b"] == [f"--token {LEFT_OUT}", "c"]
    assert json.loads(made["d"]) == {"password": LEFT_OUT}
