"""Where examples are run: which pages' examples, on what machine, and what the reader is told to do between them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.examples.blocks import ROOT, Example, blocks


@dataclass(frozen=True)
class Stage:
    """A shell on a machine of its own that runs the examples of pages, in order.

    `before`: what happens before the command that begins so, as the text tells. `serving`: commands that go on, and
    run beside the shell. `not_run`: commands of these pages that are only read, with the reason. `numbers_vary`:
    commands whose numbers are of the moment. `waited_for`: commands that look at what changes in a moment. `fails`:
    commands whose exit status is not 0 because they found something. `stands_for`: what a document writes for a value
    that is another one each time, and the command that prints it here. `inside`: the network namespace of the shell.
    """

    name: str
    pages: tuple[str, ...]
    setup: str
    before: Mapping[str, str] = field(default_factory=dict)
    serving: tuple[str, ...] = ()
    not_run: Mapping[str, str] = field(default_factory=dict)
    numbers_vary: tuple[str, ...] = ()
    waited_for: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()
    stands_for: Mapping[str, str] = field(default_factory=dict)
    inside: str = ""

    def runs(self, example: Example) -> bool:
        """Tell whether the example is run here."""
        page = example.where.partition(":")[0]
        return page in self.pages and not example.command.startswith(tuple(self.not_run))


_NETWORK: Final = """\
ip link add eth0 type veth peer name far
ip address add 192.0.2.10/24 dev eth0
ip link set eth0 up && ip link set far up && ip route add default via 192.0.2.1
"""
"""A machine with a default route, and with the addresses of which the documents speak."""
_WITH_SERVERS: Final = (
    _NETWORK
    + """\
for n in 5 6; do
  ip address add 10.1.0.$n/24 dev eth0
  mkdir w$n && echo "I am w$n" >w$n/index.html && echo ok >w$n/healthz
  python3 -m http.server --bind 10.1.0.$n --directory w$n 8080 >w$n.log 2>&1 &
  curl --retry 60 --retry-connrefused --retry-delay 1 http://10.1.0.$n:8080/healthz
done
"""
)
_MANIFEST: Final = next("\n".join(each.lines) for each in blocks(ROOT / "README.md") if each.kind == "yaml")
_AS_ROOT: Final = 'sudo() { "$@"; }\n'
_NODE_WITHOUT_PROXY: Final = """\
vipwire lab up && mkdir services && vipwire lab manifests >services/web.yaml
export VIPWIRE_FLAGS="--manifests=$STAGE/services --hostname-override=node-1"
VIPWIRE_FLAGS+=" --cluster-cidr=10.244.0.0/16,fd00:10:244::/48"
"""


def _stopped(command: str) -> str:
    """End a command, and wait until it has: the shell sees the processes of its own machine alone."""
    return f"pkill -f '{command}'; {_ended(command)}"


def _ended(command: str) -> str:
    """Wait until a command that was told to end has ended, as a reader sees before typing on."""
    return f"while pkill -0 -f '{command}'; do sleep 0.1; done"


_HEALTHY: Final = "until curl -f http://127.0.0.1:10256/healthz; do sleep 0.1; done"
_STOPPED: Final = _stopped("vipwire up")
_FILES_OF_THE_GATEWAY: Final = "\n".join(
    f"cat >{each.lines[0].removeprefix('# ')} <<'END'\n{lines}\nEND"
    for each in blocks(ROOT / "docs/gateway.md")
    if each.kind == "yaml" and each.lines[0].endswith(".yaml") and (lines := "\n".join(each.lines))
)
_ALLOCATED: Final = {"10.96.203.129": "kubectl get service web -o jsonpath={.spec.clusterIP}"}
_LOOKS: Final = (
    "kubectl get",
    "curl",
    "for n in",
    "dig",
    "vipwire status",
    "vipwire explain",
    "vipwire lab exec node-1 -- vipwire",
)

STAGES: Final = (
    Stage(
        "see a packet",
        ("docs/tutorials/see-a-packet.md",),
        "true",
        serving=("vipwire lab view",),
        numbers_vary=("vipwire lab probe",),
        fails=("vipwire lab exec node-1 -- vipwire explain",),
        waited_for=_LOOKS,
    ),
    Stage(
        "two web servers",
        ("docs/tutorials/two-web-servers.md",),
        _NETWORK,
        before={"vipwire cleanup": _ended("vipwire up")},
        serving=("vipwire up", "vipwire view"),
        waited_for=_LOOKS,
        numbers_vary=("for n in", "vipwire status"),
        stands_for=_ALLOCATED,
    ),
    Stage(
        "from kube-proxy",
        ("docs/tutorials/from-kube-proxy.md",),
        _NETWORK,
        before={"sed -i": _ended("vipwire proxy"), "vipwire cleanup": _ended("vipwire proxy")},
        serving=("vipwire up", "vipwire proxy"),
        waited_for=_LOOKS,
        numbers_vary=("vipwire status",),
        fails=("iptables-save -t nat | grep -c",),
    ),
    Stage(
        "standalone",
        ("docs/standalone.md",),
        _WITH_SERVERS,
        before={
            "kubectl get pods": "rm -f w5/healthz",
            "vipwire up --bind-address": f"{_STOPPED} && ip address add 10.0.0.1/24 dev eth0",
            "vipwire store backup": "mkdir backup",
            "vipwire store restore": _STOPPED,
        },
        serving=("vipwire up",),
        waited_for=(*_LOOKS, "vipwire token"),
        stands_for={**_ALLOCATED, "/backup": 'printf %s "$STAGE/backup"'},
    ),
    Stage(
        "a gateway",
        ("docs/gateway.md",),
        f"{_AS_ROOT}{_FILES_OF_THE_GATEWAY}",
        serving=("mkdir old new",),
        waited_for=_LOOKS,
        not_run={
            "sudo vipwire up": "the walk's first gateway has the ports; tests of the cluster's gateway run both",
            "vipwire ingress convert": "asks the reader's cluster; tests of the conversion run it",
        },
    ),
    Stage(
        "the lab",
        ("docs/lab.md",),
        "true",
        numbers_vary=("vipwire lab probe", "vipwire lab exec node-1 -- vipwire status"),
        not_run={
            "vipwire lab compare": "takes a minute; tests/kernel/test_lab_compare.py runs it",
            "vipwire lab tour": "waits for Enter; tests/kernel/test_lab_compare.py runs it",
        },
        waited_for=_LOOKS,
    ),
    Stage(
        "on a node",
        ("docs/commands.md", "docs/packet-path.md", "docs/modes/nftables.md"),
        "vipwire lab up --proxy-mode nftables && cp -r /run/vipwire-lab/demo/services /etc/vipwire/",
        serving=("vipwire view", "nft insert rule"),
        inside="vipwire-demo-node-1",
        fails=("vipwire drain 10.244.2.12",),
        not_run={
            "nft list set ip vipwire connections": "needs --count-traffic; the tests of counting read the set",
            "vipwire proxy --offload-packet-threshold": "needs flowtables; tests/kernel/full/offloading.py",
        },
        waited_for=_LOOKS,
    ),
    Stage(
        "a node's own proxy",
        ("docs/modes/iptables.md", "docs/modes/userspace.md"),
        _NODE_WITHOUT_PROXY,
        before={"vipwire proxy --proxy-mode=userspace": f"{_HEALTHY}; {_stopped('vipwire proxy')}"},
        serving=("vipwire proxy",),
        inside="vipwire-demo-node-1",
        waited_for=(*_LOOKS, "iptables-save"),
        not_run={
            "modprobe": "changes the machine's kernel",
            "vipwire status": "shows ports of the moment; the tests of userspace mode read them",
        },
    ),
    Stage(
        "servers by names",
        ("docs/dns.md", "docs/ingress.md"),
        f"{_NETWORK}cat >web.yaml <<END\n{_MANIFEST}\nEND\n",
        waited_for=_LOOKS,
        not_run={"kubectl": "needs a cluster"},
    ),
)


def is_run(example: Example) -> bool:
    """Tell whether any stage runs an example."""
    return any(stage.runs(example) for stage in STAGES)
