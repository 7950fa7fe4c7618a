"""A Proxmox VE on one Linux machine: the API, real containers, real volumes."""
