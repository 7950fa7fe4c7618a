"""Whether a Proxmox answers as the contract says: the cases, and the command that holds a node against them."""
