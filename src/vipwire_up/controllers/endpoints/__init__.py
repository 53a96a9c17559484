"""The endpoints controller: from Services and Pods to EndpointSlices and Endpoints."""
