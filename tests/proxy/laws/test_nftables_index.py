"""Whatever was rendered: keys of the large maps are what the small ones tell, chains are what their names tell."""

from hypothesis import given
from hypothesis import strategies as st
from tests.proxy.laws.worlds import World, worlds

from vipwire.model.spread import Algorithm
from vipwire.modes.nftables.table.names import CHAIN, LARGEST_POOL, Class, Object, ObjectKey, Space
from vipwire.modes.nftables.table.pools import find_written_chain
from vipwire.modes.nftables.table.read import INDEXED, derive_keys
from vipwire.modes.nftables.table.render import render_service
from vipwire.modes.nftables.table.skeleton import HOOKED


def elements(world: World) -> dict[str, dict[ObjectKey, Object]]:
    """Render a world: elements by their set."""
    found: dict[str, dict[ObjectKey, Object]] = {}
    for plan in world.planner().plans.values():
        rendered = render_service(world.space.family, plan)
        for key, value in (*rendered.shared.items(), *rendered.own.items()):
            found.setdefault(key[0], {})[key] = value
    return found


@given(worlds(ranges=True).map(elements))
def test_the_keys_of_large_maps_are_told_by_small_ones(known: dict[str, dict[ObjectKey, Object]]) -> None:
    for name in INDEXED:
        told = derive_keys(name, known)
        assert told is not None
        assert sorted(told) == sorted(key for _, key in known.get(name, {}))


@given(worlds(ranges=True))
def test_every_chain_of_a_service_is_known_without_having_been_rendered(world: World) -> None:
    for key, chain in elements(world).get(CHAIN, {}).items():
        assert dict(HOOKED).get(key, find_written_chain(world.space.family, key[1].decode())) == chain


@given(
    st.builds(
        Class,
        st.sampled_from(Space),
        st.booleans(),
        st.booleans(),
        st.sampled_from([each for each in Algorithm if each is not Algorithm.ROUND_ROBIN]),
        st.integers(1, LARGEST_POOL),
    )
)
def test_a_class_is_read_from_its_handle(kind: Class) -> None:
    assert Class.of(kind.handle) == kind


@given(st.binary(max_size=8))
def test_any_bytes_are_a_class_or_none(handle: bytes) -> None:
    found = Class.of(handle)
    assert found is None or len(handle) == 4
