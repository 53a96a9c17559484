"""Lets only the admin role set the command that a probe runs. A hook.

`vipwire up --exec-probes` runs these commands on this machine. The node role may write Pods; without this, whoever
has that role could run anything. It may keep a command that is there, and take it away.
"""

from collections.abc import Iterator

from vipwire_up.api.admission import AdmissionRequest, Admitted, Operation
from vipwire_up.api.kinds.pod import PODS
from vipwire_up.api.objects.errors import refused
from vipwire_up.api.objects.object import at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.serving.authorization import Role


class ExecProbeAdmission:
    """The hook."""

    def admit(self, attempt: AdmissionRequest) -> Admitted | None:
        """Refuse a Pod with a command that was not there before, unless an admin or a part of ours writes it."""
        if attempt.resource is not PODS or attempt.operation is Operation.DELETE or attempt.new is None:
            return None
        caller = attempt.caller
        if caller is None or Role.ADMIN.value in caller.groups:
            return None
        before = list(_commands(attempt.old))
        for command in _commands(attempt.new):
            if command not in before:
                why = f'User "{caller.name}" cannot set the command of a probe: only the role admin may'
                raise refused(PODS.id, attempt.name, why)
        return None


def _commands(pod: Object | None) -> Iterator[tuple[object, object]]:
    """List the commands of a Pod's probes, with their containers."""
    containers = at(pod, "spec", "containers")
    for each in containers if isinstance(containers, list) else ():
        if (command := at(each, "readinessProbe", "exec", "command")) is not None:
            yield at(each, "name"), command
