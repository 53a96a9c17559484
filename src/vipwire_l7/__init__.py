"""Serves Ingresses and the Gateway API with HAProxy."""
