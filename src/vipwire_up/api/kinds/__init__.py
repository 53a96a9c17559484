"""The kinds of objects that are served: one declaration each."""
