"""What each flag of `vipwire proxy` means, as `--help` prints it: one paragraph a flag, in our own words."""

from typing import Final

from vipwire.config.gates import KNOWN_GATES
from vipwire.config.modes import DEFAULT, mode_names

HELP: Final[dict[str, str]] = {
    # Where Services come from
    "kubeconfig": (
        "Kubeconfig file that says where the API server is and who we are. Without it, without --master and "
        "without --manifests: the Pod's own service account."
    ),
    "master": "Address of the API server; overrides the one in the kubeconfig.",
    "manifests": (
        "A file or a folder of manifests (YAML or JSON) that is watched instead of an API server. May be given "
        "several times."
    ),
    "hostname-override": "Name of the Node that this proxy serves. Without it: the machine's host name.",
    "config-sync-period": "How often everything that is known is checked again. Must be greater than 0.",
    "kube-api-content-type": "Content type of requests to the API server. vipwire talks JSON whatever stands here.",
    "kube-api-qps": "Requests to the API server per second.",
    "kube-api-burst": "Requests to the API server that may be made at once beyond that rate.",
    # Configuration file
    "config": (
        "KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1). Most other flags are ignored then, with "
        "a warning."
    ),
    "write-config-to": "Write the configuration that results from all flags to this file, and exit.",
    "feature-gates": f"Feature gates, as Name=true,Other=false. Known: {', '.join(sorted(KNOWN_GATES))}."
    " Other gates of Kubernetes from 1.20 on are accepted and have no effect.",
    # How Services are carried
    "proxy-mode": f"One of {', '.join(mode_names())}; empty means {DEFAULT}.",
    "proxy-mode-fallback": (
        "Where the kernel lacks what the mode needs, use the next that works: from ipvs iptables, nftables, "
        "userspace. Otherwise that is an error."
    ),
    "iptables-sync-period": (
        "How often the kernel's rules are compared with what they should be, in every mode other than ipvs. Must "
        "be greater than 0."
    ),
    "iptables-min-sync-period": (
        "Shortest time from one change of the kernel's rules to the next, in every mode other than ipvs; 0 "
        "applies a change when it comes, which is what nftables mode does without this flag."
    ),
    "iptables-masquerade-bit": "Bit of the packet mark, 0 to 31, that marks packets for source NAT.",
    "masquerade-all": "Source NAT for everything that is sent to a ClusterIP.",
    "iptables-localhost-nodeports": "Answer NodePorts on 127.0.0.1 too (iptables mode, IPv4).",
    # ipvs mode
    "ipvs-scheduler": "Scheduler of virtual servers, such as rr, wrr, lc, wlc, sh, dh, sed, nq, mh; empty means rr.",
    "ipvs-sync-period": "As --iptables-sync-period, for ipvs mode.",
    "ipvs-min-sync-period": "As --iptables-min-sync-period, for ipvs mode.",
    "ipvs-exclude-cidrs": "CIDRs, with commas between them: virtual servers with these addresses are left alone.",
    "ipvs-strict-arp": "Set arp_ignore to 1 and arp_announce to 2.",
    "ipvs-tcp-timeout": "Timeout of idle TCP connections; 0 leaves the kernel's.",
    "ipvs-tcpfin-timeout": "Timeout of TCP connections after a FIN; 0 leaves the kernel's.",
    "ipvs-udp-timeout": "Timeout of UDP flows; 0 leaves the kernel's.",
    # userspace mode
    "proxy-port-range": "Ports to listen on, as begin-end (both inclusive); empty means any. Unused in other modes.",
    "userspace-bind": (
        "Do without rules of iptables: listen at the VIPs themselves (vip), at loopback addresses made from them "
        "(loopback: 10.96.3.7 becomes 127.96.3.7) or at ports of the proxy's own (none). Empty means with rules."
    ),
    "udp-timeout": "How long an idle UDP flow is kept. Must be greater than 0. Unused in other modes.",
    # Addresses and local traffic
    "bind-address": (
        "The Node's primary IP address, where it is not the one in the Node object. Nothing is bound to it; an "
        "IPv6 address makes IPv6 the primary family."
    ),
    "nodeport-addresses": (
        "CIDRs, with commas between them, whose addresses of this node answer NodePorts; or the word primary. "
        "Empty means all addresses, and primary in nftables mode."
    ),
    "detect-local-mode": (
        "How traffic of this node's Pods is recognised: ClusterCIDR, NodeCIDR, BridgeInterface or "
        "InterfaceNamePrefix; empty means ClusterCIDR."
    ),
    "cluster-cidr": "Pods' addresses for ClusterCIDR: one CIDR, or one of each family with a comma between them.",
    "pod-bridge-interface": "Name of the bridge for BridgeInterface.",
    "pod-interface-name-prefix": "How interfaces' names begin for InterfaceNamePrefix.",
    # Connection tracking
    "conntrack-max-per-core": (
        "Connections to track per CPU; 0 leaves the kernel's limit and ignores --conntrack-min."
    ),
    "conntrack-min": "Connections to track at least, whatever the number of CPUs.",
    "conntrack-tcp-timeout-established": "Timeout of idle established TCP connections; 0 leaves the kernel's.",
    "conntrack-tcp-timeout-close-wait": "Timeout of TCP connections in CLOSE_WAIT; 0 leaves the kernel's.",
    "conntrack-tcp-be-liberal": "Do not call packets outside of the TCP window invalid.",
    "conntrack-udp-timeout": "Timeout of UDP flows without an answer; 0 leaves the kernel's.",
    "conntrack-udp-timeout-stream": "Timeout of UDP flows with answers; 0 leaves the kernel's.",
    # Health, metrics and debugging
    "healthz-bind-address": "IP and port of /healthz, /livez and /readyz; empty switches them off.",
    "metrics-bind-address": "IP and port of /metrics, /proxyMode, /configz; empty switches them off.",
    "bind-address-hard-fail": "Exit when one of these ports cannot be bound, instead of trying again every 5 s.",
    "profiling": "Serve /debug on the metrics port: stacks, a profile, the log level.",
    "counters": (
        "Count connections, and packets that were refused, and tell them in /metrics: none, services (by Service "
        "port), or endpoints (by endpoint, too)."
    ),
    "count-traffic": (
        "nftables mode: count packets and bytes as well, which costs every packet some time. ipvs and userspace "
        "mode count them in any case, iptables mode never."
    ),
    "counters-limit": "So many Service ports, endpoints and refusals at most are told apart in /metrics.",
    "show-hidden-metrics-for-version": "Accepted as <major>.<minor>; vipwire hides no metrics.",
    "healthz-port": "Deprecated: the port of --healthz-bind-address; 0 switches it off.",
    "metrics-port": "Deprecated: the port of --metrics-bind-address; 0 switches it off.",
    # This process
    "cleanup": "Remove everything that vipwire has programmed, and exit; the same as `vipwire cleanup`.",
    "takeover": (
        "Take the place of the vipwire proxy or up that runs in this network namespace: it ends first, the rules "
        "stay, and no connection is lost. Without it a second one does not start."
    ),
    "state-dir": "Folder of what `vipwire drain` tells the proxies of this machine. Root writes there.",
    "init-only": "Do only what needs full privileges (sysctls), and exit. CAP_NET_ADMIN is enough to run afterwards.",
    "oom-score-adj": "The oom-score-adj of this process, -1000 to 1000.",
    "help": "Show this text, and exit.",
    "version": "Show the version, and exit.",
    # Logging
    "v": "How much is logged: 0 the least, 10 everything.",
    "vmodule": "Other levels for single source files, as file=N,other*=M.",
    "logging-format": "text (key=value) or json, one line each.",
    "log-flush-frequency": "Accepted; every line is written at once.",
    "log-json-split-stream": "With json: errors to stderr, everything else to stdout.",
    "log-json-info-buffer-size": "Accepted; nothing is buffered.",
    "log-text-split-stream": "With text: errors to stderr, everything else to stdout.",
    "log-text-info-buffer-size": "Accepted; nothing is buffered.",
}
