"""A web service as an application: one page on one port, under systemd."""
