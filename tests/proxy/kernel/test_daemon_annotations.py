"""Bad values of annotations: each is an Event of its Service that says what is allowed, and the Service is served."""

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import prepare, reached, scene, service_of, slice_for, stage

pytestmark = pytest.mark.kernel
BAD = {
    "algorithm": ("fastest", "random, round-robin, source-hash, maglev"),
    "weights": ('{"10.244.0.1": 300}', "whole numbers from 0 to 100"),
    "affinity-scope": ("everywhere", "port, service"),
    "slow-start": ("3 days", "1s to 60m"),
    "nodeport-source-ranges": ("203.0.113.0/99", "at least 0 and at most 32"),
    "port-range": ("90-70", "10000-20000"),
    "forwarding": ("dsrr", "nat, dsr, tunnel"),
    "drain-seconds": ("30s", "whole seconds from 0 to 86400"),
    "scheduler-flags": ("mh-fallbak", "mh-fallback"),
    "algoritm": ("maglev", "did you mean vipwire.io/algorithm?"),
}


async def test_each_is_an_event_of_its_service_and_counts_as_absent() -> None:
    with stage():
        server = FakeApiServer()
        prepare(server)
        service = service_of("web", "10.96.0.1")
        service["metadata"]["annotations"] = {f"vipwire.io/{name}": value for name, (value, _) in BAD.items()}
        server.store.put("services", service)
        server.store.put("endpointslices", slice_for("web", "10.244.0.1"))
        async with scene(server) as it:
            await it.synced()
            events = await it.posted("InvalidField", "web", count=len(BAD))
            said = {event["message"].partition(": ")[0]: event["message"] for event in events}
            for name, (_, allowed) in BAD.items():
                assert allowed in said[f"metadata.annotations[vipwire.io/{name}]"]
            assert len(events) == len(BAD)
            assert await reached("10.96.0.1") == "10.244.0.1"
            assert await it.daemon.terminate() == 0
