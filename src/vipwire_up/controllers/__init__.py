"""The controllers that Services need: addresses and ports at admission, endpoints and announcements beside it."""
