"""Reaches the API server and authenticates to it: kubeconfigs, TLS, tokens, HTTP proxies."""
