"""Writes docs/annotations.md from the table of annotations: `make docs`. A test compares the file."""

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from vipwire.modes.registry import list_specs
from vipwire.plan.annotations import NOTHING, Lack
from vipwire.plan.annotations.words import KUBE_ROUTERS_OWN, WORDS, Word

PATH = Path(__file__).parent.parent / "docs" / "annotations.md"
MODES: Final[Mapping[str, tuple[Lack, ...]]] = MappingProxyType({spec.name: spec.lacks for spec in list_specs()})

_INTRODUCTION = """\
# Annotations

Settings of a Service beyond its spec. `make docs` writes this page from `src/vipwire/plan/annotations/words.py`.

* vipwire ignores an invalid value, and in a list or in weights only the invalid entry.
* vipwire reports an invalid value, an unknown key that begins with `vipwire.io/`, a key that resembles one of
  kube-router's, and an annotation that the mode does not follow: in the log, as an Event on the Service, and in
  `vipwire status`.
* Capitals and spaces around a word do not matter.

## Of Services

| annotation | value | default | modes | effect |
|---|---|---|---|---|
"""
_ELSEWHERE = """\

`vipwire ingress` reads `vipwire.io/weights`, too. Each mode has notes on the choice of an endpoint:
[nftables](modes/nftables.md#algorithms-and-weights-by-annotation),
[iptables](modes/iptables.md#how-an-endpoint-is-chosen), [ipvs](modes/ipvs.md#annotations) and
[userspace](modes/userspace.md#how-connections-are-dealt).

vipwire ignores the annotations for other parts of kube-router: {theirs}.

## Endpoints that do not answer

An endpoint may pass its readiness probes and still not answer clients, for example behind a firewall between nodes.

```yaml
metadata:
  annotations:
    vipwire.io/eject-after: "3"      # failures in a row; turns it on
    vipwire.io/eject-for: 30s        # the first time; doubles each time, up to 5m
    vipwire.io/eject-at-most: "50"   # percent of the endpoints of a Service port
```

* **Failure.** A new connection through the Service fails if no answer comes for 3 seconds, or only a reset. Any other
  answer ends the row.
* **Effect** ([promises](semantics.md#ejection)). Open connections go on. Other nodes judge for themselves.
* **Limit.** If a policy is Local and all local endpoints are ejected, vipwire uses all of them. Topology hints give
  way.
* **Return.** After its time the endpoint is on trial, with slow start if the Service has it. The first answer ends
  the trial; the first failure ejects the endpoint for twice as long. 5 minutes without a failure end the count.
* **Reports.** Events `EndpointEjected` and `EndpointReadmitted` on the Service; `vipwire_ejected_endpoints` and
  `vipwire_ejections_total`; `vipwire status` and `vipwire explain`.

While a Service has the annotation, each new connection of the node costs the kernel 4 µs more
([design](design/0013-outlier-ejection-from-beginnings.md)). vipwire sees neither packets that a firewall of *this*
node drops, nor replies on connections that IPVS forwards by `dsr` or `tunnel`. Userspace mode does not read these
annotations: [its relay](modes/userspace.md#how-connections-are-dealt) tries another endpoint at once.

## Of other objects

| object | annotation | read by |
|---|---|---|
| Ingress, IngressClass | see [ingress.md](ingress.md#annotations) | `vipwire ingress` |
| Service | `announce.vipwire.io/from`, `announce.vipwire.io/interface`: machines that may announce its addresses, \
see [standalone.md](standalone.md#addresses-that-move) | `vipwire up`, `vipwire join` |
| Service | `announce.vipwire.io/bgp`: addresses that are announced to routers, see \
[standalone.md](standalone.md#routers-bgp) | `vipwire up`, `vipwire join` |
| Pod | `vipwire.io/address`: address of a server, see [standalone.md](standalone.md) | `vipwire up` |
| EndpointSlice | `endpoints.kubernetes.io/last-change-trigger-time`: for the metrics of latency | `vipwire proxy` |
"""


def document() -> str:
    theirs = ", ".join(f"`{key}`" for key in sorted(KUBE_ROUTERS_OWN))
    return _INTRODUCTION + "".join(map(_row, WORDS)) + _ELSEWHERE.format(theirs=theirs)


def _row(word: Word) -> str:
    cells = (f"`{word.key}`", word.values, word.default, ", ".join(_modes(word)), word.meaning)
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |")


def _modes(word: Word) -> Iterator[str]:
    """Yield the modes that support an annotation, with the values that each mode lacks."""
    lacking = {mode: [lack for lack in lacks if lack.wish == word.wish] for mode, lacks in MODES.items()}
    if not any(lacking.values()):
        yield "all"
        return
    for mode, lacks in lacking.items():
        if not lacks:
            yield mode
        elif values := _left_out(word, lacks):
            yield f"{mode} (not {', '.join(f'`{value}`' for value in values)})"


def _left_out(word: Word, lacks: list[Lack]) -> list[str]:
    """Return the values that a mode lacks; all but the default: []."""
    values = [value for lack in lacks for value in lack.values if isinstance(value, Enum)]
    if not values or not all(lack.values for lack in lacks):
        return []
    left = set(type(values[0])) - {*values, getattr(NOTHING, word.wish)}
    return [str(value.value) for value in values] if left else []


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
