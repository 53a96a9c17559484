"""The help text of each flag of `vipwire proxy`: one paragraph a flag, in our own words."""

from typing import Final

from vipwire.config.gates import KNOWN_GATES
from vipwire.config.modes import DEFAULT, mode_names

HELP: Final[dict[str, str]] = {
    # Where Services come from
    "kubeconfig": (
        "Kubeconfig file with the address of the API server and the credentials. Without --kubeconfig, --master and "
        "--manifests, vipwire uses the Pod's service account."
    ),
    "master": "Address of the API server; overrides the one in the kubeconfig.",
    "manifests": (
        "Read Services and endpoints from this file or folder (YAML or JSON) and follow its changes, instead of an "
        "API server. May be repeated."
    ),
    "hostname-override": "Name of the Node that this proxy serves; the host name by default.",
    "config-sync-period": "How often vipwire checks again everything that it knows. Must be greater than 0.",
    "kube-api-content-type": "Accepted; vipwire always sends and asks for JSON.",
    "kube-api-qps": "Requests to the API server per second.",
    "kube-api-burst": "Requests to the API server that may go out at once, above --kube-api-qps.",
    # Configuration file
    "config": (
        "KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1). With it, most other flags are ignored, with "
        "a warning."
    ),
    "write-config-to": "Write the configuration that results from all flags and the file to this file, and exit.",
    "feature-gates": f"Feature gates, as Name=true,Other=false. Known: {', '.join(sorted(KNOWN_GATES))}."
    " Other gates cause a warning and have no effect.",
    # How Services are carried
    "proxy-mode": f"One of {', '.join(mode_names())}; empty means {DEFAULT}.",
    "proxy-mode-fallback": (
        "If the kernel lacks what the mode needs, use the next mode that works (after ipvs: iptables, nftables, "
        "userspace). Without this flag vipwire exits with an error."
    ),
    "iptables-sync-period": (
        "How often vipwire compares the kernel with the plan, in every mode other than ipvs. Must be greater than 0."
    ),
    "iptables-min-sync-period": (
        "Shortest time between two changes of the kernel, in every mode other than ipvs. 0 applies every change at "
        "once, which is the default of nftables mode."
    ),
    "iptables-masquerade-bit": "Bit of the packet mark (0 to 31) that asks for source NAT.",
    "masquerade-all": "Apply source NAT to everything that is sent to a ClusterIP.",
    "iptables-localhost-nodeports": "Answer NodePorts on 127.0.0.1 too (iptables mode, IPv4).",
    "offload-packet-threshold": (
        "Packets of a forwarded TCP connection to a Service after which a flowtable of the kernel carries it past "
        "all rules, vipwire's and others'. 20 is a good value; 0 offloads nothing. In nftables and ebpf mode."
    ),
    # ipvs mode
    "ipvs-scheduler": "Scheduler of virtual servers, such as rr, wrr, lc, wlc, sh, dh, sed, nq, mh; empty means rr.",
    "ipvs-sync-period": "As --iptables-sync-period, for ipvs mode.",
    "ipvs-min-sync-period": "As --iptables-min-sync-period, for ipvs mode.",
    "ipvs-exclude-cidrs": "Comma-separated CIDRs: vipwire leaves virtual servers with these addresses alone.",
    "ipvs-strict-arp": "Set arp_ignore to 1 and arp_announce to 2, so that nothing answers ARP for its VIPs.",
    "ipvs-tcp-timeout": "Timeout of idle TCP connections; 0 keeps the kernel's value.",
    "ipvs-tcpfin-timeout": "Timeout of TCP connections after a FIN; 0 keeps the kernel's value.",
    "ipvs-udp-timeout": "Timeout of UDP flows; 0 keeps the kernel's value.",
    # userspace mode
    "proxy-port-range": "Ports to listen on, as begin-end (both inclusive); empty means any. Unused in other modes.",
    "userspace-bind": (
        "Write no iptables rules; listen at the VIPs (vip) or at the proxy's own ports (none). Empty means with "
        "rules."
    ),
    "udp-timeout": "How long an idle UDP flow is kept. Must be greater than 0. Unused in other modes.",
    # ebpf mode
    "ebpf-cgroup": (
        "Folder of cgroup2 whose sockets are translated when they connect; empty means the machine's root, which is "
        "every process."
    ),
    "ebpf-clients": (
        "Whose sockets: all (the node's and its Pods'), or node. Beside a service mesh whose sidecars must see the "
        "Service's address, choose node. For tests also the Pods' network namespaces, as paths with commas."
    ),
    "ebpf-connected-udp": (
        "Give connected UDP sockets endpoints, too. When an endpoint goes its sockets are ended: the next call gets "
        "ECONNABORTED, and they may connect again. Needs CAP_SYS_ADMIN and hostPID for Pods."
    ),
    "ebpf-affinity": (
        "Serve session affinity of Pods by programs, too, which is faster. They know a client by its network "
        "namespace, the rules by its address: one that comes both ways may have two endpoints."
    ),
    # Addresses and local traffic
    "bind-address": (
        "The Node's primary IP address, if it is not the one in the Node object. vipwire binds nothing to it. An "
        "IPv6 address makes IPv6 the primary family."
    ),
    "nodeport-addresses": (
        "Comma-separated CIDRs: NodePorts answer at the node's addresses in them. Or the word primary. Empty means "
        "all addresses; in nftables mode, primary."
    ),
    "detect-local-mode": (
        "How vipwire recognises traffic of this node's Pods: ClusterCIDR, NodeCIDR, BridgeInterface or "
        "InterfaceNamePrefix; empty means ClusterCIDR."
    ),
    "cluster-cidr": "The Pods' addresses, for ClusterCIDR: one CIDR, or one of each family, separated by a comma.",
    "pod-bridge-interface": "Name of the bridge for BridgeInterface.",
    "pod-interface-name-prefix": "Prefix of the Pods' interface names, for InterfaceNamePrefix.",
    # Connection tracking
    "conntrack-max-per-core": (
        "Connections to track per CPU; 0 keeps the kernel's limit and ignores --conntrack-min."
    ),
    "conntrack-min": "The least number of connections to track, however few CPUs there are.",
    "conntrack-tcp-timeout-established": "Timeout of idle established TCP connections; 0 keeps the kernel's value.",
    "conntrack-tcp-timeout-close-wait": "Timeout of TCP connections in CLOSE_WAIT; 0 keeps the kernel's value.",
    "conntrack-tcp-be-liberal": "Accept packets outside of the TCP window instead of treating them as invalid.",
    "conntrack-udp-timeout": "Timeout of UDP flows without an answer; 0 keeps the kernel's value.",
    "conntrack-udp-timeout-stream": "Timeout of UDP flows with answers; 0 keeps the kernel's value.",
    # Health, metrics and debugging
    "healthz-bind-address": "IP and port of /healthz, /livez and /readyz; empty disables them.",
    "metrics-bind-address": "IP and port of /metrics, /proxyMode, /configz; empty disables them.",
    "view-bind-address": (
        "IP and port of the page of `vipwire view`, such as 127.0.0.1:10247; empty serves none. Beyond loopback it "
        "asks for the token in the file view-token of --state-dir."
    ),
    "bind-address-hard-fail": "Exit if one of these ports cannot be bound, instead of trying again every 5 s.",
    "profiling": "Serve /debug on the metrics port: stacks, a profile, the log level.",
    "counters": (
        "Count connections and refused packets for /metrics: none, services (by Service port), or endpoints (by "
        "endpoint, too)."
    ),
    "count-traffic": (
        "Count packets and bytes in nftables mode, too; this costs every packet some time. ipvs and userspace mode "
        "always count them, iptables mode never does."
    ),
    "counters-limit": "The most Service ports, endpoints and refusals that get series of their own in /metrics.",
    "show-hidden-metrics-for-version": "Accepted as <major>.<minor>; vipwire hides no metrics.",
    "healthz-port": "Deprecated: the port of --healthz-bind-address; 0 disables the server.",
    "metrics-port": "Deprecated: the port of --metrics-bind-address; 0 disables the server.",
    # This process
    "cleanup": "Remove everything that vipwire has programmed, and exit; the same as `vipwire cleanup`.",
    "cleanup-all": (
        "With --cleanup, or as `vipwire cleanup --all`: remove what has names of a running kube-proxy's, too. "
        "Otherwise that stays, for it is kube-proxy's by now."
    ),
    "takeover": (
        "Take the place of the vipwire proxy or up that runs in this network namespace: it ends first, the rules "
        "stay, and no connection is lost. Without it a second one does not start."
    ),
    "state-dir": (
        "Folder for state that commands share with the running proxy: drained endpoints, the proxy's own record."
    ),
    "init-only": "Set kernel settings, which needs full privileges, and exit. To run later CAP_NET_ADMIN is enough.",
    "oom-score-adj": "The oom-score-adj of this process, -1000 to 1000.",
    "help": "Show this text, and exit.",
    "version": "Show the version, and exit.",
    # Logging
    "v": "Verbosity of the log, from 0 to 10.",
    "vmodule": "Verbosity for single source files, as file=N,other*=M.",
    "logging-format": "text (key=value) or json, one line each.",
    "log-flush-frequency": "Accepted; every line is written at once.",
    "log-json-split-stream": "With json: errors to stderr, everything else to stdout.",
    "log-json-info-buffer-size": "Accepted; nothing is buffered.",
    "log-text-split-stream": "With text: errors to stderr, everything else to stdout.",
    "log-text-info-buffer-size": "Accepted; nothing is buffered.",
}
