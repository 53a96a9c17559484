"""The slots of a pool as one object: the same elements as without, for every world."""

from hypothesis import given
from tests.proxy.laws.worlds import World, worlds

from vipwire.modes.nftables.table.blocks import (
    BLOCKED,
    count_elements,
    find_missing,
    form_blocks,
    split_block,
    split_blocks,
)
from vipwire.modes.nftables.table.names import Block, Object, ObjectKey, add_comment
from vipwire.modes.nftables.table.render import render_service

Objects = dict[ObjectKey, Object]


def rendered(world: World, *, blocks: bool) -> Objects:
    family, plans = world.space.family, world.planner().plans.values()
    return {key: value for plan in plans for key, value in render_service(family, plan, blocks=blocks).own.items()}


def blocks_of(world: World, name: str) -> dict[bytes, Block]:
    objects = rendered(world, blocks=True)
    return {key[1]: value for key, value in objects.items() if key[0] == name and isinstance(value, Block)}


def elements_of(blocks: dict[bytes, Block]) -> dict[bytes, Object]:
    return {each: data for key, block in blocks.items() for each, data in split_block(key, block).items()}


@given(worlds(ranges=True))
def test_blocks_contain_the_elements_of_each_pool(world: World) -> None:
    plain, blocks = rendered(world, blocks=False), rendered(world, blocks=True)
    assert dict(split_blocks(blocks.items())) == plain
    assert count_elements(blocks) == count_elements(plain)
    assert not any(isinstance(value, Block) for (name, _), value in blocks.items() if name not in BLOCKED)


@given(worlds(), worlds())
def test_a_change_of_blocks_changes_the_elements(before: World, after: World) -> None:
    for name in BLOCKED:
        old, new = blocks_of(before, name), blocks_of(after, name)
        kernel = elements_of({key: block for key, block in old.items() if key in new})
        for key in old.keys() & new.keys():
            for each in find_missing(key, old[key], new[key]):
                del kernel[each]
            coming = find_missing(key, new[key], old[key])
            assert not coming.keys() & kernel.keys(), "the kernel refuses an element with other data"
            kernel |= coming
        assert kernel == elements_of({key: block for key, block in new.items() if key in old})


@given(worlds(), worlds())
def test_the_kernels_elements_form_one_block_for_each_pool(found: World, wanted: World) -> None:
    for name in BLOCKED:
        blocks, planned = blocks_of(found, name), blocks_of(wanted, name)
        held = elements_of(blocks)
        formed = form_blocks(dict(held), planned.items())
        assert formed == blocks
        assert all(formed[key] is block for key, block in planned.items() if blocks.get(key) == block)
        for rest in (dict([*held.items()][1::2]), {each: add_comment(b"", "") for each in held}):
            formed = form_blocks(dict(rest), planned.items())
            assert elements_of(formed) == rest
            assert formed.keys() <= blocks.keys(), "an element has one block, whatever is missing"
