"""Damage to the maps and programs of ebpf mode, as a command on the node: ACTION FAMILY [VIP]."""

import sys

from vipwire.linux.bpf.maps import Map
from vipwire.linux.bpf.programs import HOOKS
from vipwire.model.net import Family, Protocol, parse_address
from vipwire.modes.ebpf.driver import find_node_folder
from vipwire.modes.ebpf.layout import FRONTEND, choose_family_suffix, endpoint_slot, frontend_key, slot_size
from vipwire.modes.ebpf.pinned import NodePins
from vipwire.modes.ebpf.tables import Tables


def main(action: str, family: Family, *vip: str) -> None:
    pins = NodePins(find_node_folder(), None)
    if action == "hooks":
        sys.stdout.writelines(f"program {hook}\n" for hook in HOOKS if pins.link(hook) is not None)
        return
    frontends, slots = (pins.find(name + choose_family_suffix(family)) for name in ("frontends", "slots"))
    assert frontends is not None
    assert slots is not None
    key = frontend_key(parse_address(vip[0]), Protocol.TCP, 80) if vip else b""
    match action:
        case "show":
            for (space, place), value in sorted(Tables(family, pins).observe().items()):
                sys.stdout.write(f"{space} {place.hex()} {value.hex()}\n")
            suffix = choose_family_suffix(family)
            sys.stdout.write(f"{sorted(hook for hook in pins.read_attached_programs() if hook.endswith(suffix))}\n")
        case "detach":
            pins.detach_programs(hook for hook in HOOKS if hook.endswith(choose_family_suffix(family)))
        case "empty":
            frontends.remove([each for each, _ in frontends.items()])
        case "remove":
            frontends.remove([key])
        case "mislead":
            _mislead(family, frontends, slots, key)


def _mislead(family: Family, frontends: Map, slots: Map, key: bytes) -> None:
    """Point the first slot of a frontend to no endpoint."""
    first, *_ = FRONTEND.unpack(frontends.lookup(key) or b"")
    nobody = endpoint_slot(parse_address("192.0.2.1" if family is Family.IPV4 else "2001:db8::1"), 9)
    with slots.map_memory(write=True) as view:
        view[first * slot_size(family) : (first + 1) * slot_size(family)] = nobody


if __name__ == "__main__":
    main(sys.argv[1], Family(sys.argv[2]), *sys.argv[3:])
