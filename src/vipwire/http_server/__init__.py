"""An HTTP/1.1 server over asyncio and httptools, which limits the memory and the connections of its clients."""
