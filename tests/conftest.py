"""How hard the laws are tried: a hundred examples each, and fifty times as many with HYPOTHESIS_PROFILE=deep."""

import os

from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("deep", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
