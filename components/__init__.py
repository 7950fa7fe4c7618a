"""What exists: the Pulumi resources of the two stacks, and the settings that they are made from."""
