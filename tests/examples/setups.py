"""Scripts that prepare the examples' machines: addresses, servers, files of a page, etcd."""

from typing import Final

from tests.examples.blocks import ROOT, blocks

NETWORK: Final = """\
ip link add eth0 type veth peer name far
ip address add 192.0.2.10/24 dev eth0
ip link set eth0 up && ip link set far up && ip route add default via 192.0.2.1
"""
"""A machine with a default route, and with the documents' addresses."""
WITH_SERVERS: Final = (
    NETWORK
    + """\
for n in 5 6; do
  ip address add 10.1.0.$n/24 dev eth0
  mkdir w$n && echo "I am w$n" >w$n/index.html && echo ok >w$n/healthz
  python3 -m http.server --bind 10.1.0.$n --directory w$n 8080 >w$n.log 2>&1 &
done
for n in 5 6; do until curl -f http://10.1.0.$n:8080/healthz; do sleep 0.2; done; done
"""
)
MANIFEST: Final = next("\n".join(each.lines) for each in blocks(ROOT / "README.md") if each.kind == "yaml")
WITH_MANIFEST: Final = f"{NETWORK}mkdir services && tee web.yaml >services/web.yaml <<END\n{MANIFEST}\nEND\n"
AS_ROOT: Final = 'sudo() { "$@"; }\n'
NODE_WITHOUT_PROXY: Final = """\
vipwire lab up && mkdir services && vipwire lab manifests >services/web.yaml
export VIPWIRE_FLAGS="--manifests=$STAGE/services --hostname-override=node-1"
VIPWIRE_FLAGS+=" --cluster-cidr=10.244.0.0/16,fd00:10:244::/48"
"""
NODE_IN_IPVS_MODE: Final = f"""\
{NODE_WITHOUT_PROXY}sed -i 's/^  type: NodePort/&\\n  externalTrafficPolicy: Local/' services/web.yaml
ip netns exec vipwire-demo-node-1 vipwire proxy --proxy-mode=ipvs >proxy.log 2>&1 &
"""
"""With a policy that makes two pools."""
ADMIN_OF_A_CLUSTER: Final = """\
vipwire up --no-proxy --no-dns >up.log 2>&1 &
until kubectl get --raw /readyz; do sleep 0.2; done
mkdir -p ~/.kube && cp /var/lib/vipwire/admin.kubeconfig ~/.kube/config
kubectl --namespace=kube-system create configmap kube-proxy --from-file=config.conf
"""
FILES_OF_THE_GATEWAY: Final = "\n".join(
    f"cat >{each.lines[0].removeprefix('# ')} <<'END'\n{lines}\nEND"
    for each in blocks(ROOT / "docs/gateway.md")
    if each.kind == "yaml" and each.lines[0].endswith(".yaml") and (lines := "\n".join(each.lines))
)
_MEMBERS: Final = ",".join(f"m{number}=http://10.0.0.{number}:2380" for number in (1, 2, 3))
ETCD: Final = f"""\
ip link add eth0 type veth peer name far && ip link set far up && ip link set eth0 up
ip address add 10.0.0.1/24 dev eth0 && ip address add 10.0.0.2 dev lo && ip address add 10.0.0.3 dev lo
ip route add default via 10.0.0.254
key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
openssl req -x509 $key -days 2 -subj /CN=etcd-ca -keyout etcd-ca.key -out etcd-ca.crt
for each in server client; do
  echo subjectAltName=IP:10.0.0.1,IP:10.0.0.2,IP:10.0.0.3 >names
  openssl req $key -subj /CN=$each -keyout etcd-$each.key -out request
  openssl x509 -req -in request -days 2 -CA etcd-ca.crt -CAkey etcd-ca.key -extfile names -out etcd-$each.crt
done
for n in 1 2 3; do
  here=https://10.0.0.$n:2379 peer=http://10.0.0.$n:2380
  etcd --name m$n --data-dir m$n --unsafe-no-fsync --listen-client-urls $here --advertise-client-urls $here \\
    --listen-peer-urls $peer --initial-advertise-peer-urls $peer --initial-cluster {_MEMBERS} --client-cert-auth \\
    --cert-file etcd-server.crt --key-file etcd-server.key --trusted-ca-file etcd-ca.crt >m$n.log 2>&1 &
done
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=https://10.0.0.1:2379 ETCDCTL_CACERT=etcd-ca.crt
export ETCDCTL_CERT=etcd-client.crt ETCDCTL_KEY=etcd-client.key KUBECONFIG=/var/lib/vipwire/admin.kubeconfig
until etcdctl endpoint health; do sleep 0.2; done
"""
"""Three members with TLS on one machine, and certificates with the names of docs/stores.md."""
ETCD_FLAGS: Final = (
    "https://10.0.0.1:2379,https://10.0.0.2:2379,https://10.0.0.3:2379 "
    "--etcd-cafile etcd-ca.crt --etcd-certfile etcd-client.crt --etcd-keyfile etcd-client.key"
)


def stopped(command: str) -> str:
    """End a command, and wait for its exit: the shell sees only its own machine's processes."""
    return f"pkill -f '{command}'; {ended(command)}"


def ended(command: str) -> str:
    """Wait for the exit of a command that was told to end, as a reader does before typing on."""
    return f"while pkill -0 -f '{command}'; do sleep 0.1; done"


SYNCED: Final = "until curl -f http://127.0.0.1:10256/readyz; do sleep 0.1; done"
PODS_ANSWER: Final = "until curl -f http://127.0.0.11:8080/ && curl -f http://127.0.0.12:8080/; do sleep 0.2; done"
READY: Final = "until curl -fk https://10.0.0.1:6443/readyz; do sleep 0.2; done"
STOPPED: Final = stopped("vipwire up")
IN_A_FILE: Final = f"""\
{READY}; {STOPPED}; etcdctl del --prefix /vipwire; rm -r /var/lib/vipwire/*
vipwire up --bind-address 10.0.0.1 --no-proxy --no-dns >up.log 2>&1 &
{READY}; {STOPPED}
"""
"""A cluster of one server, whose objects will move to etcd."""
