"""`vipwire view`: one page in a browser that shows what `status`, `top`, `explain`, `diff` and `plan` know.

    look       one thread: reads objects and kernel again and again, answers questions    ┐
    rates      another one: connections as they come                                      ├▶ board ─▶ site ─▶ browser
    changes    what the proxy has written of its last syncs                               ┘
    gate       who may look, and from where

The documents are those of the commands: nothing is known here that they do not know.
"""
