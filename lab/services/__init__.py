"""What a guest finds on the bridge besides names and addresses: a model endpoint and a git repository."""
