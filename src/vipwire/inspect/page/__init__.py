"""`vipwire view`: a web page with the views of `status`, `top`, `explain`, `diff` and `plan`.

look       one thread: reads objects and kernel in a loop, answers questions          ┐
rates      another thread: connection events                                          ├▶ board ─▶ site ─▶ browser
changes    the proxy's record of its last syncs                                       ┘
gate       access control
"""
