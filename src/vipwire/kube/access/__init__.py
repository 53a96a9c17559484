"""Connects and authenticates to the API server: kubeconfigs, TLS, tokens, HTTP proxies."""
