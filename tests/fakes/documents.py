"""Reads one object as the proxy reads it from a manifest, without a file."""

from vipwire.kube.manifests.documents import IN_MANIFESTS, read_object
from vipwire.model.problem import Problem
from vipwire.watched_objects.event import Object


def read_document(word: str, document: object) -> tuple[tuple[Object, ...], tuple[Problem, ...]]:
    """Read a parsed object of a kind of `Kind`, or `Endpoints`, which become slices."""
    return read_object(next(each for each in IN_MANIFESTS if each.word == word), document)
