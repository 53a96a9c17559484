"""What Services need to work: addresses and ports at admission, endpoints and announcements beside it."""
