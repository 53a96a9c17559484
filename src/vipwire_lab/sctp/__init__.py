"""Just enough SCTP for a question and an answer, for kernels that have no SCTP sockets."""
