"""The program's applications: what runs in a cattle."""
