"""Write docs/annotations.md from the words that are read: `make docs`. A test holds the file to what this writes."""

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from vipwire.modes.registry import every_spec
from vipwire.plan.annotations import NOTHING, Lack
from vipwire.plan.annotations.words import KUBE_ROUTERS_OWN, WORDS, Word

PATH = Path(__file__).parent.parent / "docs" / "annotations.md"
MODES: Final[Mapping[str, tuple[Lack, ...]]] = MappingProxyType({spec.name: spec.lacks for spec in every_spec()})

_INTRODUCTION = """\
# Annotations

What a Service can ask for beyond its spec. `make docs` writes this page from `src/vipwire/plan/annotations/words.py`.
`vipwire proxy` in every mode, `vipwire ingress` and the commands that explain read annotations alike.

* A value that cannot be read counts as absent. In a list, or in weights, only the bad entry does.
* vipwire reports a bad value, an unknown key that begins with `vipwire.io/`, and a key that is nearly one of
  kube-router's: in the log, as an Event on the Service, and in `vipwire status`.
* A mode that cannot do what an annotation asks says so in the same places, with what it does instead.
* Capitals and spaces around a word do not matter.

## Of Services

| annotation | value | default | modes | what it does |
|---|---|---|---|---|
"""
_ELSEWHERE = """\

`vipwire ingress` reads `vipwire.io/weights` of the Services that it sends requests to. The pages of the modes say how
each one chooses an endpoint:
[nftables](modes/nftables.md#algorithms-and-weights-by-annotation),
[iptables](modes/iptables.md#how-an-endpoint-is-chosen), [ipvs](modes/ipvs.md#annotations) and
[userspace](modes/userspace.md#how-connections-are-dealt).

vipwire leaves the words for other parts of kube-router alone: {theirs}.

## Endpoints that do not answer

Readiness probes come from the kubelet of the Pod's own node. An endpoint may pass them and still not answer
clients: its accept queue is full, a firewall between the nodes drops packets, or its node is gone and the control
plane has not noticed.

```yaml
metadata:
  annotations:
    vipwire.io/eject-after: "3"      # failures in a row; turns it on
    vipwire.io/eject-for: 30s        # the first time; doubles each time, up to 5m
    vipwire.io/eject-at-most: "50"   # percent of the endpoints of a Service port
```

* **What fails.** A new connection by way of the Service fails if nothing comes back for 3 seconds, or only a reset.
  Any other answer ends the row. TCP and SCTP count. UDP counts with `vipwire.io/eject-udp: "true"`, for many UDP
  protocols never answer.
* **What happens.** This node sends no new connections there, at no frontend. Open connections go on. An
  attempt that it has not answered goes to another endpoint when the client repeats its SYN, and so does a client that
  session affinity remembers for it. Other nodes judge for themselves.
* **Who stays.** At most half of a Service port's endpoints (`eject-at-most`) is ejected at a time, one in any case,
  and never the last. Where a policy is Local and all local endpoints are ejected, they are all used. Topology hints
  give way.
* **The way back.** When its time is over the endpoint is on trial, with slow start if the Service has it. The first
  answer ends the trial. The first failure ejects it for twice as long. After 5 minutes without a failure it begins
  anew.
* **How to see it.** A Warning `EndpointEjected` on the Service, and `EndpointReadmitted`;
  `vipwire_ejected_endpoints` and `vipwire_ejections_total`; `vipwire status` and `vipwire explain` name the
  endpoint and the time.
* **A restart of vipwire forgets**: its first sync uses all endpoints again.

vipwire reads this from the kernel's connection tracking, by events, and only while a Service asks for it. Then each
new connection of the node costs the kernel 4 µs more, whatever Service it is for, and the proxy reads one message
for each connection to an endpoint that is watched. Of one endpoint it follows eight connections at a time. Events
that come faster than they are read are lost (`vipwire_conntrack_events_lost_total`), and nobody is ejected for
that. With `net.netfilter.nf_conntrack_events=0` there are none, and the log says so
([why](design/0013-outlier-ejection-from-beginnings.md)).

vipwire does not see packets that a firewall of *this* node drops, and connections that IPVS forwards by `dsr` or
`tunnel`, whose answers do not come back this way. If a firewall elsewhere refuses one client only, its failures count
like all others; a Service with other clients has answers in between.

Userspace mode does not read these annotations. Its relay tries another endpoint at once
([how](modes/userspace.md#how-connections-are-dealt)).

## Of other objects

| object | annotation | read by |
|---|---|---|
| Ingress, IngressClass | a vocabulary of its own: [ingress.md](ingress.md#annotations) | `vipwire ingress` |
| Service | `announce.vipwire.io/from`, `announce.vipwire.io/interface`: which machines may announce its addresses, \
see [standalone.md](standalone.md#addresses-that-move) | `vipwire up`, `vipwire join` |
| Service | `announce.vipwire.io/bgp`: which of its addresses are announced to routers, see \
[three-servers.md](three-servers.md#routers-instead-of-neighbours-bgp) | `vipwire up`, `vipwire join` |
| Pod | `vipwire.io/address`: where a workload is reached, see [standalone.md](standalone.md) | `vipwire up` |
| EndpointSlice | `endpoints.kubernetes.io/last-change-trigger-time`: for the metrics of latency | `vipwire proxy` |
"""


def document() -> str:
    """Write the whole page."""
    theirs = ", ".join(f"`{key}`" for key in sorted(KUBE_ROUTERS_OWN))
    return _INTRODUCTION + "".join(map(_row, WORDS)) + _ELSEWHERE.format(theirs=theirs)


def _row(word: Word) -> str:
    cells = (f"`{word.key}`", word.values, word.default, ", ".join(_modes(word)), word.meaning)
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |")


def _modes(word: Word) -> Iterator[str]:
    """Name the modes in which a word counts, and the values that are left out there."""
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
    """Name the values that a mode does not have; none where it has no other than the default."""
    values = [value for lack in lacks for value in lack.values if isinstance(value, Enum)]
    if not values or not all(lack.values for lack in lacks):
        return []
    left = set(type(values[0])) - {*values, getattr(NOTHING, word.wish)}
    return [str(value.value) for value in values] if left else []


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
