"""A release of the agent tried in the lab, on a copy of a home, before a stack is told to run it (scripts/try-release).

Beside lab, provisioning and components, which know nothing of it.
"""
