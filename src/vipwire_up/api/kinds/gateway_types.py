"""The types of the Gateway API (gateway.networking.k8s.io), as its custom resource definitions have them."""

from typing import Final

from vipwire_up.api.kinds.meta import META
from vipwire_up.api.objects.schema import Type, read_types

GROUP: Final = "gateway.networking.k8s.io"
_SHARED: Final = """
ParentReference | What a route attaches to.
  group string default=gateway.networking.k8s.io like=group | Its group.
  kind string default=Gateway like=kind | Its kind.
  namespace string like=namespace | Its namespace; the route's if not given.
  name string required | Its name.
  sectionName string like=subdomain | A listener of it.
  port int32 range=1..65535 | A port of it.
SecretObjectReference | An object that holds something.
  group string default= like=group | Its group.
  kind string default=Secret like=kind | Its kind.
  name string required | Its name.
  namespace string like=namespace | Its namespace.
RouteGroupKind | A kind of route.
  group string default=gateway.networking.k8s.io like=group | Its group.
  kind string required like=kind | Its kind.
NamespaceSelector | Namespaces from which something may attach.
  from string one=All,Selector,Same,None | Which ones.
  selector LabelSelector | Their labels.
RouteParentStatus | What a controller says about a route at one parent.
  parentRef ParentReference required | The parent.
  controllerName string required | The controller.
  conditions []Condition key=type | What is the case.
RouteStatus | What controllers say about a route.
  parents []RouteParentStatus atomic | By parent.
BackendRef | Where requests go.
  group string default= like=group | The group of the backend.
  kind string default=Service like=kind | Its kind.
  name string required | Its name.
  namespace string like=namespace | Its namespace.
  port int32 range=1..65535 | Its port.
  weight int32 default=1 range=0..1000000 | Its share.
Fraction | A share.
  numerator int32 required | The part.
  denominator int32 default=100 | The whole.
HTTPHeader | A header.
  name string required max=256 like=header | Its name.
  value string required max=4096 like=text | Its value.
HTTPHeaderFilter | Changes of headers.
  set []HTTPHeader key=name | Replaced.
  add []HTTPHeader key=name | Added.
  remove []string set | Removed.
HTTPRequestMirrorFilter | A copy of requests.
  backendRef BackendRef required | Where it goes.
  percent int32 range=0..100 | How many of them.
  fraction Fraction | How many of them.
HTTPPathModifier | A change of a path.
  type string required one=ReplaceFullPath,ReplacePrefixMatch | What is changed.
  replaceFullPath string max=1024 | The new path.
  replacePrefixMatch string max=1024 | The new prefix.
HTTPRequestRedirectFilter | A redirect.
  scheme string one=http,https | The scheme.
  hostname string like=subdomain | The host.
  path HTTPPathModifier | The path.
  port int32 range=1..65535 | The port.
  statusCode int32 default=302 | The status code.
HTTPURLRewriteFilter | A change of requests on their way to the backend.
  hostname string like=subdomain | The host.
  path HTTPPathModifier | The path.
HTTPCORSFilter | Cross-origin requests.
  allowOrigins []string set | From where.
  allowCredentials bool | Whether with credentials.
  allowMethods []string set | With which methods.
  allowHeaders []string set | With which headers.
  exposeHeaders []string set | Which headers of responses are shown.
  maxAge int32 default=5 | Seconds that this holds.
HTTPAuthConfig | How a server is asked by HTTP.
  path string max=1024 | What comes before the path.
  allowedHeaders []string set | Which headers it gets.
  allowedResponseHeaders []string set | Which of its headers the backend gets.
GRPCAuthConfig | How a server is asked by gRPC.
  allowedHeaders []string set | Which headers it gets.
ForwardBodyConfig | Whether it gets the body.
  maxSize int32 range=0..65535 | The most bytes.
HTTPExternalAuthFilter | A server that is asked whether a request may pass.
  protocol string required one=HTTP,GRPC | How it is asked.
  backendRef BackendRef required | The server.
  http HTTPAuthConfig | How it is asked by HTTP.
  grpc GRPCAuthConfig | How it is asked by gRPC.
  forwardBody ForwardBodyConfig | Whether it gets the body.
HTTPDirectResponseBody | What an answer says.
  string string required max=4096 | The text.
HTTPDirectResponseFilter | An answer without a backend.
  statusCode int32 required range=100..599 | Its status code.
  body HTTPDirectResponseBody | What it says.
LocalObjectReference | An object of the same namespace.
  group string like=group | Its group.
  kind string required like=kind | Its kind.
  name string required | Its name.
HTTPRouteFilter | What is done with requests or responses.
  type string required | Which filter it is.
  requestHeaderModifier HTTPHeaderFilter | Headers of requests.
  responseHeaderModifier HTTPHeaderFilter | Headers of responses.
  requestMirror HTTPRequestMirrorFilter | A copy.
  requestRedirect HTTPRequestRedirectFilter | A redirect.
  urlRewrite HTTPURLRewriteFilter | Another URL.
  cors HTTPCORSFilter | Cross-origin requests.
  externalAuth HTTPExternalAuthFilter | A server that is asked.
  directResponse HTTPDirectResponseFilter | An answer without a backend.
  extensionRef LocalObjectReference | A filter of somebody's.
FilteredBackendRef | Where requests go, and what is done with them.
  group string default= like=group | The group of the backend.
  kind string default=Service like=kind | Its kind.
  name string required | Its name.
  namespace string like=namespace | Its namespace.
  port int32 range=1..65535 | Its port.
  weight int32 default=1 range=0..1000000 | Its share.
  filters []HTTPRouteFilter atomic | What is done with the requests.
CookieConfig | A cookie.
  lifetimeType string default=Session one=Permanent,Session | How long it lives.
SessionPersistence | Requests of a session go to the same endpoint.
  sessionName string max=128 | Its name.
  absoluteTimeout string | How long it lasts.
  idleTimeout string | How long it lasts without a request.
  type string default=Cookie one=Cookie,Header | How it is known.
  cookieConfig CookieConfig | Its cookie.
NamedMatch | A header or a query parameter.
  type string default=Exact one=Exact,RegularExpression | How it is compared.
  name string required max=256 like=header | Its name.
  value string required max=4096 like=text | Its value.
"""
_ROUTES: Final = """
HTTPPathMatch | A path.
  type string default=PathPrefix one=Exact,PathPrefix,RegularExpression | How it is compared.
  value string default=/ max=1024 | Its value.
HTTPRouteMatch | What must hold of a request.
  path HTTPPathMatch | Its path.
  headers []NamedMatch key=name | Its headers.
  queryParams []NamedMatch key=name | Its query.
  method string one=GET,HEAD,POST,PUT,DELETE,CONNECT,OPTIONS,TRACE,PATCH | Its method.
HTTPRouteTimeouts | How long things may take.
  request string | The whole.
  backendRequest string | One try.
HTTPRouteRetry | When a request is sent again.
  codes []int32 atomic | After these status codes.
  attempts int32 | How often.
  backoff string | After how long.
HTTPRouteRule | Some requests, and what becomes of them.
  name string | Its name.
  matches []HTTPRouteMatch atomic | Which requests: any of these.
  filters []HTTPRouteFilter atomic | What is done with them.
  backendRefs []FilteredBackendRef atomic | Where they go.
  timeouts HTTPRouteTimeouts | How long they may take.
  retry HTTPRouteRetry | When they are sent again.
  sessionPersistence SessionPersistence | Whether sessions stay.
kind HTTPRoute | Where HTTP requests go.
  spec HTTPRouteSpec required | What is wanted.
  status RouteStatus | What is the case.
HTTPRouteSpec | Where requests go.
  parentRefs []ParentReference atomic | To what it attaches.
  hostnames []string atomic | For which hosts.
  rules []HTTPRouteRule atomic | Its rules.
GRPCMethodMatch | A method of gRPC.
  type string default=Exact one=Exact,RegularExpression | How it is compared.
  service string max=1024 | Its service.
  method string max=1024 | Its name.
GRPCRouteMatch | What must hold of a request.
  method GRPCMethodMatch | Its method.
  headers []NamedMatch key=name | Its headers.
GRPCRouteRule | Some requests, and what becomes of them.
  name string | Its name.
  matches []GRPCRouteMatch atomic | Which requests.
  filters []HTTPRouteFilter atomic | What is done with them.
  backendRefs []FilteredBackendRef atomic | Where they go.
  sessionPersistence SessionPersistence | Whether sessions stay.
kind GRPCRoute | Where gRPC requests go.
  spec GRPCRouteSpec | What is wanted.
  status RouteStatus | What is the case.
GRPCRouteSpec | Where requests go.
  parentRefs []ParentReference atomic | To what it attaches.
  hostnames []string atomic | For which hosts.
  rules []GRPCRouteRule atomic | Its rules.
PlainRouteRule | Where connections go.
  name string | Its name.
  backendRefs []BackendRef required atomic | Where they go.
kind TLSRoute | Where TLS connections go, by the name that is asked for.
  spec TLSRouteSpec required | What is wanted.
  status RouteStatus | What is the case.
TLSRouteSpec | Where connections go.
  parentRefs []ParentReference atomic | To what it attaches.
  hostnames []string required atomic | For which names.
  rules []PlainRouteRule required atomic | Its rules.
kind TCPRoute | Where TCP connections go.
  spec PlainRouteSpec required | What is wanted.
  status RouteStatus | What is the case.
kind UDPRoute | Where datagrams go.
  spec PlainRouteSpec required | What is wanted.
  status RouteStatus | What is the case.
PlainRouteSpec | Where connections go.
  parentRefs []ParentReference atomic | To what it attaches.
  rules []PlainRouteRule required atomic | Its rules.
"""
_GATEWAYS: Final = """
kind GatewayClass | Who serves Gateways of this class.
  spec GatewayClassSpec required | What is wanted.
  status GatewayClassStatus | What is the case.
GatewayClassSpec | Who serves a class.
  controllerName string required max=253 | The controller.
  parametersRef SecretObjectReference | Its parameters.
  description string max=64 | What it is for.
GatewayClassStatus | What is the case about a class.
  conditions []Condition key=type | What is the case.
  supportedFeatures []SupportedFeature key=name | What it can do.
SupportedFeature | A feature.
  name string required | Its name.
kind Gateway | Where requests come in.
  spec GatewaySpec required | What is wanted.
  status GatewayStatus | What is the case.
GatewaySpec | Where requests come in.
  gatewayClassName string required max=253 | Who serves it.
  listeners []Listener key=name | The places.
  addresses []GatewayAddress atomic | Their addresses.
  infrastructure GatewayInfrastructure | What is made for it.
  allowedListeners AllowedListeners | Whose ListenerSets may add listeners.
  tls GatewayTLS | How TLS is spoken.
  defaultScope string | Whose routes attach without naming it.
GatewayInfrastructure | What is made for a Gateway.
  labels {}string | Labels of all that is made.
  annotations {}string | Annotations of all that is made.
  parametersRef LocalParametersReference | More about how.
LocalParametersReference | An object of the same namespace that says more.
  group string required max=253 like=group | Its group.
  kind string required max=63 like=kind | Its kind.
  name string required max=253 | Its name.
GatewayTLS | How TLS is spoken.
  backend GatewayBackendTLS | With Pods.
  frontend GatewayFrontendTLS | With clients.
GatewayBackendTLS | How TLS is spoken with Pods.
  clientCertificateRef SecretObjectReference | The certificate that they are shown.
GatewayFrontendTLS | How TLS is spoken with clients.
  default TLSConfig required | At all ports.
  perPort []TLSPortConfig key=port | At some ports instead.
TLSPortConfig | How TLS is spoken at a port.
  port int32 required range=1..65535 | The port.
  tls TLSConfig required | How.
TLSConfig | How TLS is spoken with clients.
  validation FrontendTLSValidation | How their certificates are checked.
FrontendTLSValidation | How certificates of clients are checked.
  caCertificateRefs []ObjectReference required atomic | Who signs them.
  mode string default=AllowValidOnly one=AllowValidOnly,AllowInsecureFallback | Who else is let in.
ObjectReference | An object of any namespace.
  group string required max=253 like=group | Its group.
  kind string required max=63 like=kind | Its kind.
  name string required max=253 | Its name.
  namespace string like=namespace | Its namespace.
AllowedListeners | Whose ListenerSets are let in.
  namespaces NamespaceSelector default={} | From which namespaces.
Listener | A place where requests come in.
  name string required max=253 | Its name.
  hostname string max=253 like=text | Its host.
  port int32 required range=1..65535 | Its port.
  protocol string required max=255 | Its protocol.
  tls GatewayTLSConfig | Its certificates.
  allowedRoutes AllowedRoutes default={} | Whose routes may attach.
GatewayTLSConfig | How TLS is ended.
  mode string default=Terminate one=Terminate,Passthrough | Where it ends.
  certificateRefs []SecretObjectReference atomic | The certificates.
  frontendValidation any | Who may come.
  options {}string | More.
AllowedRoutes | Whose routes may attach.
  namespaces NamespaceSelector default={} | From which namespaces.
  kinds []RouteGroupKind atomic | Of which kinds.
GatewayAddress | An address.
  type string default=IPAddress | Its kind.
  value string | The address.
GatewayStatusAddress | An address.
  type string default=IPAddress | Its kind.
  value string required | The address.
GatewayStatus | What is the case about a Gateway.
  addresses []GatewayStatusAddress atomic | Where it is reached.
  attachedListenerSets int32 | How many are.
  conditions []Condition key=type | What is the case.
  listeners []ListenerStatus key=name | By listener.
ListenerStatus | What is the case about a listener.
  name string required | Its name.
  supportedKinds []RouteGroupKind atomic | Which routes it takes.
  attachedRoutes int32 required | How many have come.
  conditions []Condition key=type | What is the case.
kind ListenerSet | More listeners of a Gateway.
  spec ListenerSetSpec required | What is wanted.
  status ListenerSetStatus | What is the case.
ListenerSetSpec | More listeners.
  parentRef ParentReference required | Of which Gateway.
  listeners []Listener required key=name | The places.
ListenerSetStatus | What is the case about more listeners.
  conditions []Condition key=type | What is the case.
  listeners []ListenerStatus key=name | By listener.
kind ReferenceGrant | Who may refer to objects of this namespace.
  spec ReferenceGrantSpec required | What is allowed.
ReferenceGrantSpec | Who may refer to what.
  from []ReferenceGrantFrom required atomic | Who.
  to []ReferenceGrantTo required atomic | To what.
ReferenceGrantFrom | Who may refer.
  group string required like=group | Of which group.
  kind string required like=kind | Of which kind.
  namespace string required like=namespace | Of which namespace.
ReferenceGrantTo | What may be referred to.
  group string required like=group | Of which group.
  kind string required like=kind | Of which kind.
  name string | Which one; all if not given.
kind BackendTLSPolicy | How endpoints' certificates are checked.
  spec BackendTLSPolicySpec required | What is wanted.
  status PolicyStatus | What is the case.
BackendTLSPolicySpec | How certificates are checked.
  targetRefs []PolicyTarget required atomic | Whose.
  validation BackendTLSPolicyValidation required | How.
  options {}string | More.
PolicyTarget | What a policy is for.
  group string required like=group | Its group.
  kind string required like=kind | Its kind.
  name string required | Its name.
  sectionName string like=subdomain | A part of it.
BackendTLSPolicyValidation | How certificates are checked.
  caCertificateRefs []LocalObjectReference atomic | Who signs them.
  wellKnownCACertificates string | Who signs them.
  hostname string required max=253 like=subdomain | The name that they have.
  subjectAltNames []SubjectAltName atomic | Further names.
SubjectAltName | A name in a certificate.
  type string required one=Hostname,URI | Its kind.
  hostname string like=subdomain | A host.
  uri string | A URI.
PolicyAncestorStatus | What a controller says about a policy.
  ancestorRef ParentReference required | At what.
  controllerName string required | The controller.
  conditions []Condition key=type | What is the case.
PolicyStatus | What controllers say about a policy.
  ancestors []PolicyAncestorStatus atomic | By what they are about.
"""
_PREFIX: Final = "io.k8s.networking.gateway.v1"
_PARTS: Final = read_types(_SHARED, _PREFIX, META, custom=True)
GATEWAY_TYPES: Final[dict[str, Type]] = read_types(_ROUTES, _PREFIX, META | _PARTS, custom=True) | read_types(
    _GATEWAYS, _PREFIX, META | _PARTS, custom=True
)
