"""What is behind the dynamic resources. The engine starts it apart from the program: server.py."""
