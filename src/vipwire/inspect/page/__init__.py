"""`vipwire view`: a web page that shows what `status`, `top`, `explain`, `diff` and `plan` show.

look       one thread: reads objects and kernel in a loop, answers questions          ┐
rates      another thread: connection events                                          ├▶ board ─▶ site ─▶ browser
changes    the proxy's record of its last syncs                                       ┘
gate       access control
"""
