"""What runs inside the container: phases over SSH, no pulumi, no proxmox.

key = wait_for_ssh("192.0.2.5", private_key_file="~/.ssh/id_ed25519")
target = SshTarget("192.0.2.5", key, private_key_file="~/.ssh/id_ed25519")
result = run_phase(target, plan, on_line=print)

Nothing is imported here: whoever wants one module would pay for all of them, in each run.
"""
