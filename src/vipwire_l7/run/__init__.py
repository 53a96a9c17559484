"""The shell: the process, its sockets and files, the loop, and what is told to others."""
