"""First addresses of names: nobody waits for a server that is silent, and HAProxy never asks the system itself."""

import asyncio
import re
import threading
from dataclasses import replace

from tests.gateway.test_gateway_statuses import GATEWAY, drawn

from vipwire.ingress.haproxy.configuration import configure
from vipwire.ingress.haproxy.layout import Layout
from vipwire.ingress.run.first_addresses import FirstAddresses, system_address


def test_a_name_without_an_answer_holds_up_neither_others_nor_the_end() -> None:
    silent, asked = threading.Event(), list[str]()

    def find(name: str) -> str:
        asked.append(name)
        if name.startswith("silent"):
            silent.wait(60)
            return ""
        return "192.0.2.1" if name == "here" else ""

    async def scenario() -> None:
        names = FirstAddresses(find, patience=0.05)
        many = [f"silent{number}" for number in range(40)]
        async with asyncio.timeout(20):
            assert await names.of(["here", "gone", *many]) == {"here": "192.0.2.1"}
            before = len(asked)
            assert before == 32
            # What is still asked for is not asked again.
            assert await names.of(["here", *many]) == {"here": "192.0.2.1"}
            assert asked[before:].count("silent0") == 0
        silent.set()

    asyncio.run(scenario())


def test_the_last_answer_counts_until_there_is_another() -> None:
    answers = iter(("192.0.2.1", "192.0.2.2", ""))

    async def scenario() -> list[dict[str, str]]:
        names = FirstAddresses(lambda _: next(answers, ""))
        found = []
        for _ in range(3):
            found.append(dict(await names.of(["a"])))
            await names.settled()
        return found

    first, second, third = ({"a": f"192.0.2.{number}"} for number in (1, 1, 2))
    assert asyncio.run(scenario()) == [first, second, third]


def test_the_system_knows_its_own_hosts_and_no_others() -> None:
    assert system_address("127.0.0.1") == "127.0.0.1"
    assert system_address("a" * 70 + ".example") == ""


def test_haproxy_gets_the_address_that_is_known_and_asks_nobody() -> None:
    meta = "metadata: {name: far, namespace: default}"
    of_far = "spec: {type: ExternalName, externalName: far.org, ports: [{port: 80}]}"
    far = f"apiVersion: v1\nkind: Service\n{meta}\n{of_far}"
    spec = "spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: far, port: 80}]}]}"
    route = f"apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n{meta}\n{spec}"
    listener = "listeners: [{name: http, port: 80, protocol: HTTP}]"
    gateway = GATEWAY.replace("LISTENERS", listener).replace("infra", "default")
    _, plan = drawn(gateway, far, route)
    made = configure(plan, {pool.name: () for pool in plan.pools}, Layout("/x", "/x/sock", "", ""), "")

    def written(addresses: dict[str, str] | None) -> str:
        (found,) = re.findall("init-addr (.*) weight", replace(made, addresses=addresses).text("mark"))
        return str(found)

    assert written({}) == "none"
    assert written({"far.org": "2001:db8::1"}) == "2001:db8::1,none"
    assert written(None) == "libc,none"
