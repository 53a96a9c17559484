"""Keeps an error in an object, and code that hangs, from stopping a part of `vipwire up` unnoticed."""
