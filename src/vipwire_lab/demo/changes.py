"""The scenes in which something changes: endpoints, Services, and vipwire itself."""

from collections.abc import Sequence

from vipwire_lab.demo import objects
from vipwire_lab.demo.narrator import Narrator
from vipwire_lab.demo.stage import FAMILIES, Stage, Sync, as_lines
from vipwire_lab.demo.traffic import CLIENT, MANY, NODE_ADDRESS, POD
from vipwire_lab.lab.continuous import Connection


def endpoint_leaves(stage: Stage, narrator: Narrator) -> None:
    """Remove an endpoint under an open connection, and bring it back."""
    with stage.lab.connect(CLIENT, NODE_ADDRESS, objects.WEB_NODE_PORT) as connection:
        going = connection.answer.pod
        narrator.chapter(f"{going} leaves while a connection to it is open, and comes back")
        rest = [pod for pod in objects.PODS if pod.name != going]
        narrator.say(f"{going} is taken out of web's EndpointSlices:")
        narrator.quote(as_lines(stage.change("web", objects.web(rest))))
        results = stage.lab.probe(POD.name, objects.WEB, 80, count=MANY)
        narrator.check_answers(results, rest, f"the other 4, never {going}")
        narrator.check("the open connection lives on", holds=_alive(connection))
    narrator.say("It is put back:")
    narrator.quote(as_lines(stage.change("web", objects.web())))
    results = stage.lab.probe(POD.name, objects.WEB, 80, count=MANY)
    narrator.check_answers(results, objects.PODS, "all 5 again")


def service_appears(stage: Stage, narrator: Narrator) -> None:
    """Create a Service."""
    narrator.chapter("A Service appears")
    before = stage.lab.probe(POD.name, objects.LATE, 80)
    narrator.check(f"{objects.LATE} is nobody's: {before[0].outcome.value}", holds=not before[0].answer)
    narrator.say("late.yaml is put into the folder:")
    stage.write("late", objects.late())
    seconds, result = stage.until_answered(POD.name, objects.LATE, 80)
    narrator.check(f"{seconds * 1000:.0f} ms later {result.pod} answers", holds=bool(result.answer))


def proxy_restarts(stage: Stage, narrator: Narrator) -> None:
    """Restart the proxy under traffic."""
    narrator.chapter("vipwire is restarted under traffic")
    (before,) = stage.lab.probe(CLIENT, objects.STICKY, 80)
    with (
        stage.lab.connect(CLIENT, NODE_ADDRESS, objects.WEB_NODE_PORT) as connection,
        stage.lab.continuous(POD.name, objects.WEB, 80) as stream,
    ):
        stream.wait_for(20)
        status = stage.proxy.stop() if stage.proxy else 1
        narrator.check("it ends on SIGTERM with status 0 and leaves its rules", holds=status == 0)
        stream.wait_for(20)
        with narrator.waiting("starting vipwire"):
            syncs = stage.start_proxy()
        stream.wait_for(20)
        alive = _alive(connection)
    narrator.quote(as_lines(syncs))
    narrator.check("the new process found all as it should be: 0 objects written", holds=_nothing_written(syncs))
    report = stream.report
    narrator.check(
        f"{report.attempts} connections were made meanwhile, {len(report.failures)} failed",
        holds=not report.failures,
    )
    narrator.check("an open connection lives on", holds=alive)
    (after,) = stage.lab.probe(CLIENT, objects.STICKY, 80)
    narrator.check(
        f"the client of the sticky Service still goes to {before.pod}",
        holds=bool(before.pod) and after.pod == before.pod,
    )


def cleaned_up(stage: Stage, narrator: Narrator) -> None:
    """Remove the rules."""
    narrator.chapter("vipwire cleanup")
    if stage.proxy:
        stage.proxy.stop()
    removed = stage.cleanup()
    narrator.check(
        "it says that it removed the tables of both families",
        holds=all(f"ip_family={family}" in removed for family in FAMILIES) and "removed" in removed,
    )
    (result,) = stage.lab.probe(CLIENT, objects.WEB, 80)
    narrator.check(
        f"{objects.WEB} is an address like any other again: {result.outcome.value}", holds=not result.answer
    )
    narrator.check("a second cleanup finds nothing to remove", holds="removed" not in stage.cleanup())


def _alive(connection: Connection) -> bool:
    try:
        return connection.exchange(b"still there?\n") == b"still there?\n"
    except OSError:
        return False


def _nothing_written(syncs: Sequence[Sync]) -> bool:
    return all(sync.written == 0 and sync.size == 0 and bool(sync.observed) for sync in syncs)
