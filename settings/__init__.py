"""Every setting of a stack: its type, rule, default, description, secrecy and key, in one place each.

`settings.stack.read` makes a `PetStack` or a `CattleStack` of a raw configuration. `python -m settings.generate` writes
what is made of the models: the `config` block of Pulumi.yaml, docs/options.md, and a JSON schema for editors.
"""
