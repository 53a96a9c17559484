"""The kinds of objects that the API server serves: one declaration each."""
