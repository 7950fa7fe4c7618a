"""A Proxmox VE on one Linux machine: the API, real containers, real volumes.

Nothing here imports the product and the product imports nothing here: the two
meet over HTTPS and SSH only, as they would with a real node.
"""
