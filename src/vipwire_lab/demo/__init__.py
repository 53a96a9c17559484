"""`vipwire lab demo`: a real proxy on a real kernel, scene by scene, each one checked."""
