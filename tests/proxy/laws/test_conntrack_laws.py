from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.fakes.conntrack import encode_flow

from vipwire.linux.conntrack.stale import Staleness, UdpEndpoint, UdpFrontend
from vipwire.linux.netlink.conntrack import Flow, FlowDecoder, decode
from vipwire.model.net import Address, Prefix, Protocol

# Few addresses and ports, so that flows meet frontends and endpoints often.
few = st.sampled_from([Address(bytes((10, 0, 0, last))) for last in range(4)])
ports = st.integers(1, 4)
endpoints = st.tuples(few, ports)
frontends = st.dictionaries(st.tuples(few | st.none(), ports), st.frozensets(endpoints, max_size=3), max_size=6)
cidrs = st.sampled_from([(), (Prefix(Address(bytes((10, 0, 0, 0))), 31),)])
stalenesses = st.builds(Staleness, frontends, st.frozensets(few, max_size=2), cidrs)
flows = st.builds(
    Flow,
    st.sampled_from([6, 17, 132]),
    few,
    ports,
    few,
    ports,
    few,
    ports,
    few,
    ports,
    zone=st.sampled_from([0, 0, 3]),
)
endpoint_sets = st.frozensets(endpoints, max_size=4)
other_flows = flows.map(lambda flow: flow._replace(protocol=Protocol.TCP if flow.zone else Protocol.SCTP))
udp_flows = flows.map(lambda flow: flow._replace(protocol=Protocol.UDP, zone=0))

u32 = st.integers(0, 2**32 - 1)
u16 = st.integers(0, 2**16 - 1)


def any_flows(width: int) -> st.SearchStrategy[Flow]:
    address = st.binary(min_size=width, max_size=width).map(Address)
    ends = (address, u16, address, u16)
    return st.builds(Flow, st.integers(0, 255), *ends, *ends, u32, u32, u32, u32, u16)


def frontends_of(flow: Flow, staleness: Staleness) -> list[UdpFrontend]:
    at_node: list[UdpFrontend] = (
        [(None, flow.destination_port)] if flow.destination in staleness.node_addresses else []
    )
    return [key for key in [(flow.destination, flow.destination_port), *at_node] if key in staleness.frontends]


def aimed(flow: Flow, staleness: Staleness, serving: frozenset[UdpEndpoint], *, at_node: bool) -> Staleness:
    """Give the Service that this flow goes to these endpoints, and those of any other frontend it meets as well."""
    keys: list[UdpFrontend] = [(None if at_node else flow.destination, flow.destination_port)]
    nodes = staleness.node_addresses | ({flow.destination} if at_node else frozenset())
    keys += frontends_of(flow, replace(staleness, node_addresses=nodes))
    return replace(staleness, frontends={**staleness.frontends, **dict.fromkeys(keys, serving)}, node_addresses=nodes)


@given(other_flows, stalenesses)
def test_tcp_and_sctp_are_never_stale(flow: Flow, staleness: Staleness) -> None:
    assert not staleness(flow)


@given(flow=udp_flows, staleness=stalenesses, serving=endpoint_sets, at_node=st.booleans())
def test_a_flow_to_a_frontend_is_stale_exactly_if_no_serving_endpoint_answers(
    flow: Flow, staleness: Staleness, serving: frozenset[UdpEndpoint], *, at_node: bool
) -> None:
    answers = (flow.reply_source, flow.reply_source_port)
    assert aimed(flow, staleness, serving, at_node=at_node)(flow) is (answers not in serving)


@given(udp_flows, stalenesses, endpoint_sets)
def test_a_flow_that_a_serving_endpoint_answers_is_never_stale_whatever_else_is_true(
    flow: Flow, staleness: Staleness, serving: frozenset[UdpEndpoint]
) -> None:
    answers = (flow.reply_source, flow.reply_source_port)
    now = {key: served | serving | {answers} for key, served in staleness.frontends.items()}
    assert not replace(staleness, frontends=now, service_cidrs=())(flow)


@given(udp_flows, stalenesses)
def test_a_flow_to_no_frontend_is_stale_only_as_a_translated_one_into_the_service_range(
    flow: Flow, staleness: Staleness
) -> None:
    assume(not frontends_of(flow, staleness))
    translated = (flow.reply_source, flow.reply_source_port) != (flow.destination, flow.destination_port)
    assert staleness(flow) is (translated and any(flow.destination in cidr for cidr in staleness.service_cidrs))


@given(flows, stalenesses)
def test_no_stale_flow_is_missed_by_the_filters_of_the_dump(flow: Flow, staleness: Staleness) -> None:
    if staleness(flow):
        wanted = staleness.list_ports()
        assert wanted is None or flow.destination_port in wanted
        assert staleness.list_families()


@given(st.lists(any_flows(4) | any_flows(16), max_size=8))
def test_decoding_undoes_encoding_with_and_without_memory(some: list[Flow]) -> None:
    decoder = FlowDecoder()
    messages = [memoryview(encode_flow(flow)) for flow in some]
    assert [decode(message) for message in messages] == some
    assert [decoder.decode(message) for message in messages] == some
