"""The lab's services on the bridge's address, by TCP port."""

MODEL_PORT = 8100
GIT_PORT = 9418
REGISTRY_PORT = 5000
SERVICE_PORTS = (MODEL_PORT, GIT_PORT, REGISTRY_PORT)
