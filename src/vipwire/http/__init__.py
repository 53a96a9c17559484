"""HTTP/1.1 as the proxy needs it, over asyncio and httptools: a client and small servers, quick to import."""
