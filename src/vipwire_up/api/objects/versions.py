"""Converts objects between the version of a request and the version that the store holds. Pure.

The versions of a kind differ in apiVersion and in names of fields of the whole object (`Resource.renamed`).
"""

from vipwire_up.api.objects.resource import Object, Resource


def served(resource: Resource, value: Object) -> Object:
    """Return a stored object in the version of a resource."""
    if resource.stored_as is None:
        return value
    names = {stored_name: name for name, stored_name in resource.renamed.items()}
    return {names.get(name, name): part for name, part in value.items()} | {"apiVersion": resource.api_version}


def stored(resource: Resource, value: Object) -> Object:
    """Return an object of a resource's version as the store holds it."""
    names = resource.renamed
    return {names.get(name, name): part for name, part in value.items()} | {
        "apiVersion": resource.storage.api_version
    }
