"""HAProxy's words, slots and changes, without HAProxy."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipwire.model.names import ObjectName
from vipwire.model.net import Address
from vipwire_l7.haproxy.configuration import Configuration, build_configuration
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.slots import Slots, choose_size, fill_slots
from vipwire_l7.haproxy.state import compare_configurations, record_change
from vipwire_l7.haproxy.words import write_command_word, write_line, write_literal, write_plain, write_quoted
from vipwire_l7.plan.policy import Affinity, Check, Policy
from vipwire_l7.plan.sites import Certificate, Match, Pool, Route, Server, SitePlan
from vipwire_l7.watch.objects import BackendEndpoint, BackendPort, Usability

WEB = ObjectName("default", "web")
LAYOUT = Layout("/run/x", "/run/x/sock")
PORT = BackendPort("http", 80)


def server(number: int, use: Usability = Usability.READY) -> Server:
    return Server(BackendEndpoint(Address(bytes((10, 0, number >> 8, number & 255))), use), 8080)


servers = st.lists(st.integers(1, 40), unique=True, max_size=24).map(lambda numbers: tuple(map(server, numbers)))


def plan(
    *routes: tuple[str, str], pools: tuple[str, ...] = ("p",), policy: Policy | None = None, **more: object
) -> SitePlan:
    made = tuple(Route("a.org", Match.PREFIX, path, target, WEB) for path, target in routes)
    all_pools = tuple(Pool(name, WEB, PORT, policy or Policy()) for name in pools)
    return replace(SitePlan(made, all_pools), **more)  # type: ignore[arg-type]  # of a SitePlan


def configured(made: SitePlan, **slots: Slots) -> Configuration:
    return build_configuration(
        made, {each.name: slots.get(each.name, fill_slots((), ())) for each in made.pools}, LAYOUT, "PEM"
    )


@pytest.mark.parametrize("text", ["", "a b", "a\nb", "a'", '"', "#", "a;b", "$x", "é", "{"])
def test_a_plain_word_is_plain(text: str) -> None:
    with pytest.raises(ValueError, match="cannot stand"):
        write_plain(text)


def test_quoted_words_may_hold_all_but_control_characters() -> None:
    assert write_quoted('a "b" \\ $c #') == "'a \"b\" \\ $c #'"
    assert write_literal("100%") == "'100%%'"
    assert write_line("x {} y", write_quoted("{0}"), indent=0) == "x '{0}' y"
    assert write_quoted("it's") == "'it'\"'\"'s'"
    for text in ("\n", "\x7f", "é"):
        with pytest.raises(ValueError, match="cannot stand"):
            write_quoted(text)


def test_a_command_word_ends_nothing() -> None:
    assert write_command_word("a;b c\\d") == "a\\;b\\ c\\\\d"
    with pytest.raises(ValueError, match="cannot stand"):
        write_command_word("a\nb")


@given(servers, servers)
def test_who_stays_keeps_the_slot_and_all_have_one(before: tuple[Server, ...], after: tuple[Server, ...]) -> None:
    old = fill_slots((), before)
    new = fill_slots(old, after)
    assert sorted(map(hash, filter(None, new))) == sorted(map(hash, after))
    for number, slot in enumerate(old):
        if slot in after:
            assert new[number] == slot
    assert len(new) >= len(old)
    assert len(new) == len(old) or len(after) > len(old)


def test_there_are_slots_to_spare() -> None:
    assert [choose_size(count) for count in (0, 1, 3, 4, 8, 100)] == [1, 2, 4, 5, 10, 125]


@pytest.mark.parametrize(
    ("policy", "left_out"),
    [
        (Policy(), True),
        (Policy(redispatch=False), False),
        (Policy(affinity=Affinity("c", change_on_failure=False)), False),
        (Policy(check=Check("/up")), False),
    ],
)
def test_a_server_that_is_not_reached_is_left_out_where_another_may_answer(policy: Policy, *, left_out: bool) -> None:
    made = configured(plan(("/", "p"), policy=policy), p=fill_slots((), (server(1),)))
    text = made.write_text("x")
    assert ("on-error mark-down" in text) is left_out
    assert text.count(" tcp-ut 15s") == choose_size(1)  # HAProxy 2.6 has no default for it


def test_haproxy_needs_a_file_for_each_slot_and_two_for_each_connection() -> None:
    few, more = (configured(plan(("", "p")), p=fill_slots((), tuple(map(server, range(count))))) for count in (1, 41))
    assert more.descriptors - few.descriptors == choose_size(41) - choose_size(1)
    wide = replace(few, layout=replace(LAYOUT, connections=9000))
    assert wide.descriptors - replace(few, layout=replace(LAYOUT, connections=1000)).descriptors == 16_000


def test_endpoints_change_by_commands() -> None:
    live = configured(plan(("", "p")), p=fill_slots((), (server(1), server(2))))
    going = server(1, Usability.DRAINING)
    slots = fill_slots(live.slots["p"], (going, server(3)))
    change = compare_configurations(live, replace(live, slots={"p": slots}))
    assert change.reasons == ()
    assert change.commands == (
        "set server p/s1 weight 0",
        "set server p/s2 state maint",
        "set server p/s2 addr 10.0.0.3 port 8080",
        "set server p/s2 state ready",
    )


def test_paths_change_by_commands() -> None:
    live, desired = (
        configured(plan(("/a", "p"), ("/b", "p"), pools=("p", "q"))),
        configured(plan(("/a", "q"), ("/c;d", "p"), pools=("p", "q"))),
    )
    change = compare_configurations(live, desired)
    assert change.reasons == ()
    assert change.commands == (
        "add map /run/x/prefixes.map <<\na.org/c;d/ p\na.org/c%3Bd/ p\n",
        "set map /run/x/prefixes.map a.org/a/ q",
        "del map /run/x/prefixes.map a.org/b/",
    )
    assert "del map /run/x/prefixes.map a.org/c\\;d/" in compare_configurations(desired, live).commands


def test_certificates_change_by_commands() -> None:
    bare, made = plan(("", "p")), plan(("", "p"), certificates=(Certificate("c.pem", "ONE\n", ("a.org",)),))
    first, second = configured(bare), configured(made)
    assert compare_configurations(first, second).commands == (
        "new ssl cert /run/x/c.pem",
        "set ssl cert /run/x/c.pem <<\nONE\n",
        "commit ssl cert /run/x/c.pem",
        "add ssl crt-list /run/x/certificates.list <<\n/run/x/c.pem a.org\n",
    )
    assert compare_configurations(second, first).commands == (
        "del ssl crt-list /run/x/certificates.list /run/x/c.pem",
        "del ssl cert /run/x/c.pem",
    )


def test_what_has_another_shape_is_a_reload() -> None:
    live = configured(plan(("", "p")))
    for desired, reason in (
        (configured(plan(("", "p"), pools=("p", "q"))), "a new backend q"),
        (configured(plan(("", "p"), policy=Policy(retries=1))), "another backend p"),
        (configured(plan(("", "p")), p=fill_slots((), tuple(map(server, range(9))))), "more servers for p"),
        (replace(live, layout=replace(LAYOUT, https="*:444")), "the frontend changes"),
    ):
        assert compare_configurations(live, desired).reasons[0] == reason


def test_a_backend_that_nobody_needs_waits_for_the_next_reload() -> None:
    live = configured(plan(("", "p"), ("/q", "q"), pools=("p", "q")), q=fill_slots((), (server(1),)))
    desired = configured(plan(("", "p")))
    change = compare_configurations(live, desired)
    assert change.commands == (
        "del map /run/x/prefixes.map a.org/q/",
        "del map /run/x/apart.map a.org",
        "set server q/s1 state maint",
    )
    record_change(live, change)
    assert not compare_configurations(live, desired)
    again = configured(plan(("", "p"), ("/q", "q"), pools=("p", "q")), q=fill_slots((), (server(1),)))
    assert compare_configurations(live, again).reasons == ()
    assert "set server q/s1 state ready" in compare_configurations(live, again).commands


@given(servers, servers)
def test_nothing_is_left_to_do_after_a_change(before: tuple[Server, ...], after: tuple[Server, ...]) -> None:
    live = configured(plan(("", "p")), p=fill_slots((), before))
    desired = configured(plan(("", "p")), p=fill_slots(live.slots["p"], after))
    change = compare_configurations(live, desired)
    if not change.reasons:
        record_change(live, change)
        assert not compare_configurations(live, desired)
