"""Reads and writes the ipsets of one family by netlink."""

import errno
import os
from collections.abc import Iterator, Mapping

from vipwire.errors import CommitError, UnsupportedError
from vipwire.linux.netlink.batch import NetlinkRequest, send_batch
from vipwire.linux.netlink.ipset import (
    Found,
    IpsetEntry,
    IpsetMessage,
    IpsetSpec,
    SetType,
    decode_list,
    decode_revision,
    encode_changes,
    encode_create,
    encode_get_type,
    encode_set_name,
    encode_swap,
)
from vipwire.linux.netlink.message import Acknowledgement
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.ipvs.objects.names import BESIDE, Ipset, Object, ObjectKey, Set, SetEntry, set_name, set_spec
from vipwire.reconcile.delta import SentBytes

_BUSY = 4100  # IPSET_ERR_BUSY
_REASONS = {
    _BUSY: "the set is in use",
    4103: "the element is there already",
    4352: "the set is full",  # IPSET_ERR_HASH_FULL
}


class Sets:
    """The sets of one family, in the network namespace of its creation."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._netfilter = NetlinkSocket(NETLINK_NETFILTER)
        self._revisions: dict[SetType, int] = {}

    def close(self) -> None:
        self._netfilter.close()

    def require(self) -> None:
        """Raise UnsupportedError if the kernel lacks a set type."""
        for kind in SetType:
            try:
                self._find_revision(kind)
            except OSError as error:
                raise UnsupportedError(
                    f"ipvs mode needs ipsets of type {kind.value}, and the kernel says: {error.strerror}; load the "
                    "modules ip_set, xt_set and ip_set_* (Debian: linux-image-$(uname -r), Ubuntu: "
                    "linux-modules-extra-$(uname -r), Fedora and RHEL: kernel-modules)"
                ) from error

    def read(self) -> dict[ObjectKey, Object]:
        """Read the sets with their elements; a set of another type or family is None, without elements."""
        objects: dict[ObjectKey, Object] = {}
        self._netfilter.drain()
        for which in Set:
            wanted = set_spec(which)
            name = set_name(self._family, which)
            for part in self._list_set(name):
                if part.type:
                    same = part.type == wanted.type.value and part.family in (None, self._family)
                    objects[Ipset(name)] = IpsetSpec(wanted.type, part.marks, part.limits) if same else None
                if objects[Ipset(name)]:
                    objects.update((SetEntry(name, element), mark) for element, mark in part.elements)
        return objects

    def _list_set(self, name: str) -> Iterator[Found]:
        try:
            for each in self._netfilter.dump(IpsetMessage.LIST, encode_set_name(self._family, name)):
                yield decode_list(each)
        except NetlinkError as error:
            if error.errno != errno.ENOENT:
                raise

    def create_sets(self, specs: Mapping[str, IpsetSpec]) -> SentBytes:
        requests = [
            NetlinkRequest(
                IpsetMessage.CREATE, encode_create(self._family, name, spec, self._find_revision(spec.type))
            )
            for name, spec in specs.items()
        ]
        return self._send_requests(requests, list(specs), "create")

    def replace(self, name: str, spec: IpsetSpec, *, keeps: bool) -> SentBytes:
        """Give an existing set another definition.

        `keeps`: the elements stay, and rules meet them in the old or in the new set. Otherwise the old set is of
        another type or family: raise CommitError if rules use it.
        """
        if not keeps:
            try:
                return self.destroy_sets([name]) + self.create_sets({name: spec})
            except CommitError as error:
                if error.errno != _BUSY:
                    raise
                raise CommitError(
                    f"ipset {name} is not of type {spec.type.value} for {self._family.value}, and rules or sets of "
                    f"others use it: remove these, or move them to a set of another name",
                    errno=error.errno,
                ) from error
        beside = BESIDE[self._family]
        size = self.destroy_sets([beside])  # an earlier replacement may have been interrupted
        elements = [each for part in self._list_set(name) for each in part.elements]
        size += self.create_sets({beside: spec})
        size += self.add_entries({SetEntry(beside, element): mark if spec.marks else 0 for element, mark in elements})
        size += self._send_requests(
            [NetlinkRequest(IpsetMessage.SWAP, encode_swap(self._family, name, beside))], [name], "replace"
        )
        return size + self.destroy_sets([beside])

    def destroy_sets(self, names: list[str]) -> SentBytes:
        requests = [NetlinkRequest(IpsetMessage.DESTROY, encode_set_name(self._family, name)) for name in names]
        return self._send_requests(requests, names, "destroy")

    def add_entries(self, entries: Mapping[SetEntry, int]) -> SentBytes:
        return self._send_entries(IpsetMessage.ADD, entries, "add to")

    def delete_entries(self, entries: Mapping[SetEntry, int]) -> SentBytes:
        return self._send_entries(IpsetMessage.DELETE, entries, "delete from")

    def _send_entries(self, kind: IpsetMessage, entries: Mapping[SetEntry, int], verb: str) -> SentBytes:
        by_set: dict[str, list[tuple[IpsetEntry, int]]] = {}
        for entry, mark in entries.items():
            by_set.setdefault(entry.set, []).append((entry.element, mark if kind is IpsetMessage.ADD else 0))
        requests: list[NetlinkRequest] = []
        names: list[str] = []
        for name, elements in by_set.items():
            for payload in encode_changes(self._family, name, elements):
                requests.append(NetlinkRequest(kind, payload))
                names.append(name)
        return self._send_requests(requests, names, verb)

    def _send_requests(self, requests: list[NetlinkRequest], names: list[str], verb: str) -> SentBytes:
        self._netfilter.drain()
        sent = send_batch(self._netfilter, requests)
        for at, answer in sent.refused.items():
            gone = answer.errno == errno.ENOENT and requests[at].kind in (IpsetMessage.DELETE, IpsetMessage.DESTROY)
            if not gone:
                raise CommitError(f"cannot {verb} ipset {names[at]}: {_explain_refusal(answer)}", errno=answer.errno)
        return sent.size

    def _find_revision(self, kind: SetType) -> int:
        known = self._revisions.get(kind)
        if known is None:
            answer = self._netfilter.request(IpsetMessage.TYPE, encode_get_type(self._family, kind))[0]
            known = self._revisions[kind] = decode_revision(answer.payload)
        return known


def _explain_refusal(answer: Acknowledgement) -> str:
    known = _REASONS.get(answer.errno)
    return known or f"{os.strerror(answer.errno)} {answer.text}".rstrip()
