"""The features of the Gateway API that are served, by the names of its conformance suite."""

from typing import Final

FEATURES: Final = frozenset(
    {
        "Gateway",
        "GatewayPort8080",
        "GatewayHTTPListenerIsolation",
        "GatewayStaticAddresses",
        "ReferenceGrant",
        "HTTPRoute",
        "HTTPRouteBackendProtocolH2C",
        "HTTPRouteBackendProtocolWebSocket",
        "HTTPRouteBackendRequestHeaderModification",
        "HTTPRouteBackendTimeout",
        "HTTPRouteCORS",
        "HTTPRouteDestinationPortMatching",
        "HTTPRouteHostRewrite",
        "HTTPRouteMethodMatching",
        "HTTPRouteNamedRouteRule",
        "HTTPRouteParentRefPort",
        "HTTPRoutePathRedirect",
        "HTTPRoutePathRewrite",
        "HTTPRoutePortRedirect",
        "HTTPRouteQueryParamMatching",
        "HTTPRouteRequestMirror",
        "HTTPRouteRequestMultipleMirrors",
        "HTTPRouteRequestPercentageMirror",
        "HTTPRouteRequestTimeout",
        "HTTPRouteResponseHeaderModification",
        "HTTPRouteSchemeRedirect",
        "HTTPRoute303RedirectStatusCode",
        "HTTPRoute307RedirectStatusCode",
        "HTTPRoute308RedirectStatusCode",
        "GRPCRoute",
        "GRPCRouteNamedRouteRule",
        "TLSRoute",
        "TLSRouteModeTerminate",
        "TCPRoute",
        "BackendTLSPolicy",
        "ListenerSet",
    }
)
