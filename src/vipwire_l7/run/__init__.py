"""The shell: the process, its sockets and files, the loop, logs and metrics."""
