"""An HTTP/1.1 client over asyncio and httptools, quick to import: requests, and connections kept for the next one."""
