"""The types of Services and Endpoints, and of references to objects."""

from typing import Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.kinds.pod_types import CORE_PREFIX
from vipwire_up.api.objects.schema import Type, read_types

_TABLE: Final = """
kind Service | A name and stable addresses for a changing set of endpoints.
  spec ServiceSpec #2 default={} | What is wanted.
  status ServiceStatus #3 default={} | What is the case.
ServiceSpec | What clients reach, and how they are spread over endpoints.
  allocateLoadBalancerNodePorts bool #20 | Whether a LoadBalancer also gets node ports. True unless said otherwise.
  clusterIP string #3 | The first of clusterIPs. None for a headless Service.
  clusterIPs []string #18 atomic | Virtual addresses, at most one of each family; given, or chosen by the server.
  externalIPs []string #5 atomic | Further addresses that nodes accept connections for.
  externalName string #10 | The name that DNS answers with, for type ExternalName.
  externalTrafficPolicy string #11 one=Cluster,Local | Which endpoints connections from outside may be sent to.
  healthCheckNodePort int32 #12 | Where load balancers ask a node whether it has local endpoints.
  internalTrafficPolicy string #22 pointer one=Cluster,Local | Which endpoints connections from within may be sent to.
  ipFamilies []string #19 atomic | IPv4, IPv6 or both, in order.
  ipFamilyPolicy string #17 pointer one=PreferDualStack,RequireDualStack,SingleStack | Whether both are wanted.
  loadBalancerClass string #21 | Which load balancer is meant.
  loadBalancerIP string #8 | The address that a load balancer should have.
  loadBalancerSourceRanges []string #9 atomic | CIDRs that may use the load balancer's address.
  ports []ServicePort #1 key=port,protocol merge=port | The ports.
  publishNotReadyAddresses bool #13 | Whether DNS and clients are given endpoints that are not ready.
  selector {}string #2 atomic | Labels of the Pods behind the Service. Without it, endpoints are made by hand.
  sessionAffinity string #7 default=None one=ClientIP,None | Whether a client keeps its endpoint.
  sessionAffinityConfig SessionAffinityConfig #14 | For how long.
  topologyKeys []string atomic | Not used any more.
  trafficDistribution string #23 pointer one=PreferClose,PreferSameZone,PreferSameNode | Which ones are preferred.
  type string #4 default=ClusterIP one=ClusterIP,ExternalName,LoadBalancer,NodePort | How the Service is reached.
ServicePort | One port of a Service.
  appProtocol string #6 | What is spoken, as a hint.
  name string #1 | Its name; needed if there are several ports.
  nodePort int32 #5 | The port of every node that leads here.
  port int32 #3 required range=1..65535 | Where clients connect to.
  protocol string #2 default=TCP one=SCTP,TCP,UDP | The protocol.
  targetPort intstr #4 | Number or name of the Pods' port; the same number if not given.
SessionAffinityConfig | How long a client keeps its endpoint.
  clientIP ClientIPConfig #1 | By the client's address.
ClientIPConfig | Affinity by the client's address.
  timeoutSeconds int32 #1 | Seconds of rest after which it ends. 10800 unless said otherwise.
ServiceStatus | What is the case about a Service.
  conditions []Condition #2 key=type merge=type | Aspects of its state.
  loadBalancer LoadBalancerStatus #1 default={} | What a load balancer has given it.
LoadBalancerStatus | Addresses of a load balancer.
  ingress []LoadBalancerIngress #1 atomic | The addresses.
LoadBalancerIngress | An address of a load balancer.
  hostname string #2 | A name, where there is no address.
  ip string #1 | The address.
  ipMode string #3 one=VIP,Proxy | Whether nodes may answer the address themselves.
  ports []PortStatus #4 atomic | State of single ports.
PortStatus | State of one port.
  error string #3 | What is wrong with it.
  port int32 #1 required | The port.
  protocol string #2 required | Its protocol.
kind Endpoints | The addresses behind a Service. Superseded by EndpointSlice; made by hand ones are still mirrored.
  subsets []EndpointSubset #2 atomic | Groups of addresses with the same ports.
EndpointSubset | Addresses with the same ports.
  addresses []EndpointAddress #1 atomic | Addresses that are ready.
  notReadyAddresses []EndpointAddress #2 atomic | Addresses that are not.
  ports []EndpointPort #3 atomic | The ports.
EndpointAddress | One address.
  hostname string #3 | Its name under the Service's.
  ip string #1 required | The address.
  nodeName string #4 | The node that it is on.
  targetRef ObjectReference #2 | The Pod it belongs to.
EndpointPort | A port of endpoints.
  appProtocol string #4 | What is spoken, as a hint.
  name string #1 | Its name: that of the Service's port.
  port int32 #2 required range=1..65535 | The number.
  protocol string #3 default=TCP one=SCTP,TCP,UDP | The protocol.
ObjectReference | Names an object.
  apiVersion string #5 | Its API version.
  fieldPath string #7 | A part of it.
  kind string #1 | Its kind.
  name string #3 | Its name.
  namespace string #2 | Its namespace.
  resourceVersion string #6 | The change that is meant.
  uid string #4 | Its UID.
"""

SERVICE_TYPES: Final[dict[str, Type]] = read_types(_TABLE, CORE_PREFIX, META)
