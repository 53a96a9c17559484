"""What a claim costs where thousands of Services share an address, counted in comparisons."""

from typing import ClassVar

from tests.fakes.values import ip, named

from vipwire.model.net import Protocol
from vipwire.plan.claims import Claimant, Claims
from vipwire.plan.plan import FrontendKey

SHARED = ip("198.51.100.1")


class Age(float):
    """A time of creation that counts how often such times are compared."""

    __slots__ = ()
    compared: ClassVar = 0

    def __eq__(self, other: object) -> bool:
        Age.compared += 1
        return super().__eq__(other)

    def __lt__(self, other: float) -> bool:
        Age.compared += 1
        return super().__lt__(other)

    __hash__ = float.__hash__


def one_more(services: int) -> int:
    """Have so many Services share an external IP; count what one more takes to come and to go."""
    claims = Claims()
    for number in range(services):
        claimant = Claimant(Age(number), named(f"service-{number}"))
        claims.replace(claimant, [FrontendKey(SHARED, Protocol.TCP, number + 1)], ())
    before, web = Age.compared, Claimant(Age(services / 2), named("web"))
    key = FrontendKey(SHARED, Protocol.TCP, 60_000)
    assert claims.replace(web, [key], ()) == set()
    assert claims.holder(web.name, key) is None
    assert claims.remove(web.name) == set()
    return Age.compared - before


def test_one_more_service_at_a_shared_address_is_compared_with_hardly_any_other() -> None:
    assert one_more(2_000) <= 5 * one_more(10)
