"""How the API server is reached, and as whom: kubeconfigs, TLS, tokens, HTTP proxies."""
