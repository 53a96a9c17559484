"""The types of the Gateway API (gateway.networking.k8s.io), as its custom resource definitions have them."""

from typing import Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.objects.schema import Type, read_types

GROUP: Final = "gateway.networking.k8s.io"
_FILTERS: Final = (
    "RequestHeaderModifier,ResponseHeaderModifier,RequestMirror,RequestRedirect,URLRewrite,ExtensionRef,CORS,"
    "ExternalAuth,DirectResponse"
)
_METHODS: Final = "GET,HEAD,POST,PUT,DELETE,CONNECT,OPTIONS,TRACE,PATCH"
_SHARED: Final = f"""
ParentGatewayReference | Reference to a Gateway.
  group string default=gateway.networking.k8s.io max=253 like=group | API group of the object.
  kind string default=Gateway max=63 like=kind | Kind of the object.
  name string required min=1 max=253 | Name of the object.
  namespace string max=63 like=namespace | Namespace of the object; empty means the namespace of the referrer.
ParentReference < ParentGatewayReference | Reference to a parent object.
  sectionName string max=253 like=subdomain | Name of one listener of the object; empty means all listeners.
  port int32 range=1..65535 | Port of the listeners; 0 means all ports.
SecretObjectReference | Reference to an object, usually a Secret.
  group string default= max=253 like=group | API group of the object.
  kind string default=Secret max=63 like=kind | Kind of the object.
  name string required min=1 max=253 | Name of the object.
  namespace string max=63 like=namespace | Namespace of the object; empty means the namespace of the referrer.
RouteGroupKind | A kind of route.
  group string default=gateway.networking.k8s.io max=253 like=group | API group of the route.
  kind string required max=63 like=kind | Kind of the route.
RouteNamespaces | Namespaces from which routes may attach.
  from string default=Same one=All,Selector,Same | Set of namespaces: All, Selector or Same.
  selector LabelSelector | Labels of the namespaces, if from is Selector.
ListenerNamespaces | Namespaces from which ListenerSets may attach.
  from string default=None one=All,Selector,Same,None | Set of namespaces: All, Selector, Same or None.
  selector LabelSelector | Labels of the namespaces, if from is Selector.
StatusCondition < Condition | One aspect of an object's state.
  type string required max=316 like=qualified | Type of the condition.
  observedGeneration int64 range=0..9223372036854775807 | metadata.generation that the controller saw.
  reason string required max=1024 like=reason | Reason for the status, in one word.
  message string required max=32768 | Explanation for people.
RouteParentStatus | State of a route at one parent, according to one controller.
  parentRef ParentReference required | The parent, as spec.parentRefs names it.
  controllerName string required max=253 like=controller | Name of the controller that wrote this status.
  conditions []StatusCondition required key=type items=1..8 | Conditions of the route at this parent.
RouteStatus | Observed state of a route.
  parents []RouteParentStatus required atomic items=0..32 | State of the route at each parent.
BackendObjectReference | Reference to a backend.
  group string default= max=253 like=group | API group of the backend.
  kind string default=Service max=63 like=kind | Kind of the backend.
  name string required min=1 max=253 | Name of the backend.
  namespace string max=63 like=namespace | Namespace of the backend; empty means the namespace of the route.
  port int32 range=1..65535 | Port of the backend.
BackendRef < BackendObjectReference | A destination of requests or connections.
  weight int32 default=1 range=0..1000000 | Share of requests, relative to the sum of all weights.
Fraction | A fraction.
  numerator int32 required range=0..2147483647 | Numerator of the fraction.
  denominator int32 default=100 range=1..2147483647 | Denominator of the fraction.
HTTPHeader | An HTTP header.
  name string required max=256 like=header | Name of the header.
  value string required max=4096 like=text | Value of the header.
HTTPHeaderFilter | Changes of HTTP headers.
  set []HTTPHeader key=name items=0..16 | Headers to overwrite.
  add []HTTPHeader key=name items=0..16 | Headers to add.
  remove []string set items=0..16 | Names of headers to remove.
HTTPRequestMirrorFilter | A mirror of requests.
  backendRef BackendObjectReference required | Backend that gets the mirrored requests.
  percent int32 range=0..100 | Percentage of requests to mirror.
  fraction Fraction | Fraction of requests to mirror.
HTTPPathModifier | A change of the path of a request.
  type string required one=ReplaceFullPath,ReplacePrefixMatch | Type of the change: the whole path or a prefix.
  replaceFullPath string max=1024 | New path.
  replacePrefixMatch string max=1024 | New prefix, in place of the prefix that the rule matched.
HTTPRequestRedirectFilter | An HTTP redirect.
  scheme string one=http,https | Scheme of the new URL.
  hostname string max=253 like=subdomain | Hostname of the new URL.
  path HTTPPathModifier | Path of the new URL.
  port int32 range=1..65535 | Port of the new URL.
  statusCode int32 default=302 one=301,302,303,307,308 | Status code of the response.
HTTPURLRewriteFilter | A change of requests before HAProxy forwards them.
  hostname string max=253 like=subdomain | New Host header.
  path HTTPPathModifier | New path.
HTTPCORSFilter | Rules for cross-origin requests (CORS).
  allowOrigins []string set items=0..64 max=253 like=origin | Origins that may send requests.
  allowCredentials bool | True if cross-origin requests may carry credentials.
  allowMethods []string set items=0..9 one={_METHODS},* | Methods of cross-origin requests.
  allowHeaders []string set items=0..64 max=256 like=header | Headers of cross-origin requests.
  exposeHeaders []string set items=0..64 max=256 like=header | Response headers that browsers may show to scripts.
  maxAge int32 default=5 range=1..2147483647 | Seconds for which browsers may cache these rules.
HTTPAuthConfig | Requests to an HTTP authorization server.
  path string max=1024 like=path | Prefix of the path of authorization requests.
  allowedHeaders []string set items=0..64 | Request headers that the server gets.
  allowedResponseHeaders []string set items=0..64 | Response headers of the server that the backend gets.
GRPCAuthConfig | Requests to a gRPC authorization server.
  allowedHeaders []string set items=0..64 | Request headers that the server gets.
ForwardBodyConfig | The part of the body that the authorization server gets.
  maxSize int32 range=0..65535 | Largest number of bytes; 0 forwards no body.
HTTPExternalAuthFilter | External authorization of requests.
  protocol string required one=HTTP,GRPC | Protocol of the authorization server: HTTP or GRPC.
  backendRef BackendObjectReference required | The authorization server.
  http HTTPAuthConfig | Settings for an HTTP server.
  grpc GRPCAuthConfig | Settings for a gRPC server.
  forwardBody ForwardBodyConfig | The part of the body that the server gets.
HTTPDirectResponseBody | Body of a direct response.
  string string required max=4096 | Text of the body.
HTTPDirectResponseFilter | A response without a backend.
  statusCode int32 required range=100..599 | Status code of the response.
  body HTTPDirectResponseBody | Body of the response.
LocalObjectReference | Reference to an object in the same namespace.
  group string required max=253 like=group | API group of the object.
  kind string required max=63 like=kind | Kind of the object.
  name string required min=1 max=253 | Name of the object.
GRPCRouteFilter | A filter of gRPC requests or responses.
  type string required one=ResponseHeaderModifier,RequestHeaderModifier,RequestMirror,ExtensionRef | Filter type.
  requestHeaderModifier HTTPHeaderFilter | Changes of request headers.
  responseHeaderModifier HTTPHeaderFilter | Changes of response headers.
  requestMirror HTTPRequestMirrorFilter | Mirror of requests.
  extensionRef LocalObjectReference | Filter of another API group.
HTTPRouteFilter < GRPCRouteFilter | A filter of requests or responses.
  type string required one={_FILTERS} | Type of the filter, which names the field with its settings.
  requestRedirect HTTPRequestRedirectFilter | Redirect of requests.
  urlRewrite HTTPURLRewriteFilter | Change of the host or path.
  cors HTTPCORSFilter | Rules for cross-origin requests (CORS).
  externalAuth HTTPExternalAuthFilter | External authorization of requests.
  directResponse HTTPDirectResponseFilter | Response without a backend.
HTTPBackendRef < BackendRef | A destination of requests, with filters.
  filters []HTTPRouteFilter atomic items=0..16 | Filters for requests to this backend.
GRPCBackendRef < BackendRef | A destination of gRPC requests, with filters.
  filters []GRPCRouteFilter atomic items=0..16 | Filters for requests to this backend.
CookieConfig | Settings of a session cookie.
  lifetimeType string default=Session one=Permanent,Session | Permanent cookies have an expiry.
SessionPersistence | Session persistence: requests of one session go to the same endpoint.
  sessionName string max=128 | Name of the cookie or header.
  absoluteTimeout string like=duration | Longest time of a session.
  idleTimeout string like=duration | Longest time of a session without requests.
  type string default=Cookie one=Cookie,Header | Carrier of the session: a cookie or a header.
  cookieConfig CookieConfig | Settings of the cookie.
HTTPHeaderMatch | A condition on a header.
  type string default=Exact one=Exact,RegularExpression | Comparison of the value: Exact or RegularExpression.
  name string required max=256 like=header | Name of the header.
  value string required max=4096 like=text | Value to compare with.
"""
_ROUTES: Final = f"""
HTTPPathMatch | A condition on the path.
  type string default=PathPrefix one=Exact,PathPrefix,RegularExpression | Comparison of the path.
  value string default=/ max=1024 | Path to compare with.
HTTPQueryParamMatch | A condition on a query parameter.
  type string default=Exact one=Exact,RegularExpression | Comparison of the value: Exact or RegularExpression.
  name string required max=256 like=header | Name of the query parameter.
  value string required min=1 max=1024 | Value to compare with.
HTTPRouteMatch | Conditions on a request, all of which must be true.
  path HTTPPathMatch default={{}} | Condition on the path.
  headers []HTTPHeaderMatch key=name items=0..16 | Conditions on headers.
  queryParams []HTTPQueryParamMatch key=name items=0..16 | Conditions on query parameters.
  method string one={_METHODS} | Method of the request.
HTTPRouteTimeouts | Timeouts of requests.
  request string like=duration | Timeout of the whole request.
  backendRequest string like=duration | Timeout of one attempt at a backend.
HTTPRouteRetry | Retries of failed requests.
  codes []int32 atomic range=400..599 | Status codes after which HAProxy retries.
  attempts int32 | Number of retries.
  backoff string like=duration | Time between retries.
HTTPRouteRule | Conditions on requests, and the actions for requests that match.
  name string max=253 like=subdomain | Name of the rule.
  matches []HTTPRouteMatch default=[{{}}] atomic items=0..64 | Conditions; a request must match one of them.
  filters []HTTPRouteFilter atomic items=0..16 | Filters for requests that match.
  backendRefs []HTTPBackendRef atomic items=0..16 | Backends of requests that match.
  timeouts HTTPRouteTimeouts | Timeouts of requests.
  retry HTTPRouteRetry | Retries of failed requests.
  sessionPersistence SessionPersistence | Session persistence for requests that match.
kind HTTPRoute | Routes of HTTP requests from listeners to backends.
  spec HTTPRouteSpec required | Desired state of the HTTPRoute.
  status RouteStatus | Observed state of the HTTPRoute.
CommonRouteSpec | Parents of a route.
  useDefaultGateways string one=All,None | Gateways with this defaultScope are parents, too.
  parentRefs []ParentReference atomic items=0..32 | Gateways, ListenerSets and listeners to which the route attaches.
HTTPRouteSpec < CommonRouteSpec | Desired state of an HTTPRoute.
  hostnames []string atomic items=0..16 max=253 like=host | Hostnames of requests; empty means all.
  rules []HTTPRouteRule default=[{{}}] atomic items=1..16 | Rules of the route.
GRPCMethodMatch | A condition on the gRPC method.
  type string default=Exact one=Exact,RegularExpression | Comparison of the names: Exact or RegularExpression.
  service string max=1024 | Name of the gRPC service.
  method string max=1024 | Name of the gRPC method.
GRPCRouteMatch | Conditions on a request, all of which must be true.
  method GRPCMethodMatch | Condition on the gRPC method.
  headers []HTTPHeaderMatch key=name items=0..16 | Conditions on headers.
GRPCRouteRule | Conditions on requests, and the actions for requests that match.
  name string max=253 like=subdomain | Name of the rule.
  matches []GRPCRouteMatch atomic items=0..64 | Conditions; a request must match one of them.
  filters []GRPCRouteFilter atomic items=0..16 | Filters for requests that match.
  backendRefs []GRPCBackendRef atomic items=0..16 | Backends of requests that match.
  sessionPersistence SessionPersistence | Session persistence for requests that match.
kind GRPCRoute | Routes of gRPC requests from listeners to backends.
  spec GRPCRouteSpec required | Desired state of the GRPCRoute.
  status RouteStatus | Observed state of the GRPCRoute.
GRPCRouteSpec < CommonRouteSpec | Desired state of a GRPCRoute.
  hostnames []string atomic items=0..16 max=253 like=host | Hostnames of requests; empty means all.
  rules []GRPCRouteRule atomic items=0..16 | Rules of the route.
PlainRouteRule | Backends of connections.
  name string max=253 like=subdomain | Name of the rule.
  backendRefs []BackendRef required atomic items=1..16 | Backends of connections.
kind TLSRoute | Routes of TLS connections to backends by server name (SNI).
  spec TLSRouteSpec required | Desired state of the TLSRoute.
  status RouteStatus | Observed state of the TLSRoute.
TLSRouteSpec < CommonRouteSpec | Desired state of a TLSRoute.
  hostnames []string required atomic items=1..16 max=253 like=host | Server names (SNI) of connections.
  rules []PlainRouteRule required atomic items=1..1 | Rules of the route.
kind TCPRoute | Routes of TCP connections to backends.
  spec PlainRouteSpec required | Desired state of the TCPRoute.
  status RouteStatus | Observed state of the TCPRoute.
kind UDPRoute | Routes of UDP datagrams to backends.
  spec PlainRouteSpec required | Desired state of the UDPRoute.
  status RouteStatus | Observed state of the UDPRoute.
PlainRouteSpec < CommonRouteSpec | Desired state of a TCPRoute or UDPRoute.
  rules []PlainRouteRule required atomic items=1..1 | Rules of the route.
"""
_GATEWAYS: Final = """
kind GatewayClass | A class of Gateways that one controller serves.
  spec GatewayClassSpec required | Desired state of the GatewayClass.
  status GatewayClassStatus | Observed state of the GatewayClass.
GatewayClassSpec | Desired state of a GatewayClass.
  controllerName string required max=253 like=controller | Name of the controller that serves Gateways of this class.
  parametersRef ObjectReference | Object with parameters for the controller.
  description string max=64 | Description of the class.
GatewayClassStatus | Observed state of a GatewayClass.
  conditions []StatusCondition key=type items=0..8 | Conditions of the GatewayClass.
  supportedFeatures []SupportedFeature key=name items=0..64 | Features that the controller supports.
SupportedFeature | A feature of the Gateway API.
  name string required | Name of the feature.
kind Gateway | Listeners that accept traffic for routes.
  spec GatewaySpec required | Desired state of the Gateway.
  status GatewayStatus | Observed state of the Gateway.
GatewaySpec | Desired state of a Gateway.
  gatewayClassName string required min=1 max=253 | Name of the GatewayClass.
  listeners []Listener required key=name items=1..64 | Listeners of the Gateway.
  addresses []GatewayAddress atomic items=0..16 | Addresses of the Gateway; empty means that the controller chooses.
  infrastructure GatewayInfrastructure | Metadata of the objects that the controller creates for the Gateway.
  allowedListeners AllowedListeners | ListenerSets that may add listeners to the Gateway.
  tls GatewayTLS | TLS settings of the Gateway.
  defaultScope string one=All,None | Routes that attach without a reference to the Gateway.
GatewayInfrastructure | Metadata of the objects that the controller creates for a Gateway.
  labels {}string items=0..8 max=63 like=label | Labels of these objects.
  annotations {}string items=0..8 max=4096 | Annotations of these objects.
  parametersRef LocalObjectReference | Object with parameters for the controller.
GatewayTLS | TLS settings of a Gateway.
  backend GatewayBackendTLS | TLS to endpoints.
  frontend GatewayFrontendTLS | TLS from clients.
GatewayBackendTLS | TLS to endpoints.
  clientCertificateRef SecretObjectReference | Secret with the client certificate for endpoints.
GatewayFrontendTLS | TLS from clients.
  default TLSConfig required | Settings of all ports.
  perPort []TLSPortConfig key=port items=0..64 | Settings of single ports, in place of the default.
TLSPortConfig | TLS settings of one port.
  port int32 required range=1..65535 | Number of the port.
  tls TLSConfig required | Settings of this port.
TLSConfig | TLS settings for clients.
  validation FrontendTLSValidation | Validation of client certificates.
FrontendTLSValidation | Validation of client certificates.
  caCertificateRefs []ObjectReference required atomic items=1..8 | Objects with the CA certificates of clients.
  mode string default=AllowValidOnly one=AllowValidOnly,AllowInsecureFallback | Treatment of invalid certificates.
ObjectReference < LocalObjectReference | Reference to an object.
  namespace string max=63 like=namespace | Namespace of the object.
AllowedListeners | ListenerSets that may add listeners to a Gateway.
  namespaces ListenerNamespaces default={} | Namespaces of these ListenerSets.
Listener | A port that accepts traffic.
  name string required max=253 like=subdomain | Name of the listener.
  hostname string max=253 like=host | Hostname of requests; empty means all.
  port int32 required range=1..65535 | Number of the port.
  protocol string required max=255 like=protocol | Protocol: HTTP, HTTPS, TLS, TCP or UDP.
  tls GatewayTLSConfig | TLS settings of the listener.
  allowedRoutes AllowedRoutes default={} | Routes that may attach to the listener.
GatewayTLSConfig | TLS settings of a listener.
  mode string default=Terminate one=Terminate,Passthrough | Terminate: the Gateway decrypts.
  certificateRefs []SecretObjectReference atomic items=0..64 | Secrets with the server certificates.
  options {}string items=0..16 max=4096 | Settings of the implementation.
AllowedRoutes | Routes that may attach to a listener.
  namespaces RouteNamespaces default={} | Namespaces of these routes.
  kinds []RouteGroupKind atomic items=0..8 | Kinds of these routes.
GatewayAddress | An address of a Gateway.
  type string default=IPAddress max=253 like=address | Type of the address.
  value string max=253 | The address; empty means one that the controller chooses.
GatewayStatusAddress | An address of a Gateway.
  type string default=IPAddress max=253 like=address | Type of the address.
  value string required min=1 max=253 | The address.
GatewayStatus | Observed state of a Gateway.
  addresses []GatewayStatusAddress atomic items=0..16 | Addresses at which clients reach the Gateway.
  attachedListenerSets int32 | Number of attached ListenerSets.
  conditions []StatusCondition key=type items=0..8 | Conditions of the Gateway.
  listeners []ListenerStatus key=name items=0..64 | State of each listener.
ListenerStatus | Observed state of a listener.
  name string required max=253 like=subdomain | Name of the listener.
  supportedKinds []RouteGroupKind atomic items=0..8 | Kinds of routes that the listener supports.
  attachedRoutes int32 required | Number of attached routes.
  conditions []StatusCondition required key=type items=0..8 | Conditions of the listener.
kind ListenerSet | Additional listeners of a Gateway.
  spec ListenerSetSpec required | Desired state of the ListenerSet.
  status ListenerSetStatus | Observed state of the ListenerSet.
ListenerSetSpec | Desired state of a ListenerSet.
  parentRef ParentGatewayReference required | Gateway that gets the listeners.
  listeners []Listener required key=name items=1..64 | Listeners of the ListenerSet.
ListenerSetStatus | Observed state of a ListenerSet.
  conditions []StatusCondition key=type items=0..8 | Conditions of the ListenerSet.
  listeners []ListenerStatus key=name items=0..64 | State of each listener.
kind ReferenceGrant | Permission to refer to objects in this namespace from other namespaces.
  spec ReferenceGrantSpec | Desired state of the ReferenceGrant.
ReferenceGrantSpec | Desired state of a ReferenceGrant.
  from []ReferenceGrantFrom required atomic items=1..16 | Kinds and namespaces of objects that may refer.
  to []ReferenceGrantTo required atomic items=1..16 | Objects in this namespace to which they may refer.
ReferenceGrantFrom | A kind and namespace of objects that may refer.
  group string required max=253 like=group | API group of these objects.
  kind string required max=63 like=kind | Kind of these objects.
  namespace string required max=63 like=namespace | Namespace of these objects.
ReferenceGrantTo | A kind of objects to which others may refer.
  group string required max=253 like=group | API group of these objects.
  kind string required max=63 like=kind | Kind of these objects.
  name string min=1 max=253 | Name of one object; empty means all.
kind BackendTLSPolicy | TLS from a Gateway to the endpoints of Services.
  spec BackendTLSPolicySpec required | Desired state of the BackendTLSPolicy.
  status PolicyStatus | Observed state of the BackendTLSPolicy.
BackendTLSPolicySpec | Desired state of a BackendTLSPolicy.
  targetRefs []PolicyTarget required atomic items=1..16 | Services and ports of Services with this policy.
  validation BackendTLSPolicyValidation required | Validation of the endpoints' certificates.
  options {}string items=0..16 max=4096 | Settings of the implementation.
PolicyTarget < LocalObjectReference | An object with the policy.
  sectionName string max=253 like=subdomain | Name of one part: a listener, rule or port.
BackendTLSPolicyValidation | Validation of endpoints' certificates.
  caCertificateRefs []LocalObjectReference atomic items=0..8 | Objects with the CA certificates.
  wellKnownCACertificates string max=253 like=authorities | Set of well-known CA certificates: System.
  hostname string required max=253 like=subdomain | Server name (SNI), which the certificate must contain.
  subjectAltNames []SubjectAltName atomic items=0..5 | Names, one of which the certificate must contain.
SubjectAltName | A subject alternative name of a certificate.
  type string required one=Hostname,URI | Type of the name: Hostname or URI.
  hostname string max=253 like=host | Hostname in the certificate.
  uri string max=253 like=uri | URI in the certificate.
PolicyAncestorStatus | State of a policy at one ancestor, according to one controller.
  ancestorRef ParentReference required | The ancestor, usually a Gateway.
  controllerName string required max=253 like=controller | Name of the controller that wrote this status.
  conditions []StatusCondition required key=type items=1..8 | Conditions of the policy at this ancestor.
PolicyStatus | Observed state of a policy.
  ancestors []PolicyAncestorStatus required atomic items=0..16 | State of the policy at each ancestor.
"""
_PREFIX: Final = "io.k8s.networking.gateway.v1"
_PARTS: Final = read_types(_SHARED, _PREFIX, META, custom=True)
GATEWAY_TYPES: Final[dict[str, Type]] = read_types(_ROUTES, _PREFIX, META | _PARTS, custom=True) | read_types(
    _GATEWAYS, _PREFIX, META | _PARTS, custom=True
)
