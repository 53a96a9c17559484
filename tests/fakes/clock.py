"""A clock that stands until a test moves it."""


class Clock:
    """Returns `now`, in seconds."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
