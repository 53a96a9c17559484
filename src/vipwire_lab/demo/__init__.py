"""`vipwire lab demo`: a real proxy on a real kernel, shown scene by scene, and every scene checked."""
