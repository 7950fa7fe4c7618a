"""The bench: what a person waits for, measured on a local Proxmox of its own. scripts/bench, docs/performance.md."""
