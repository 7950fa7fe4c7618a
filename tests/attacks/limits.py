"""All processes, all memory: the container stays in its operator's hands, and the agent comes back by itself."""

from __future__ import annotations

import time

from tests.attacks.attack import Scene, attack

# They sleep, so that this machine's other tests go on; what counts is their number.
BOMB = """
import os, time
if os.fork() == 0:
    os.setsid()
    made = 0
    while made < 9000:
        try:
            if os.fork() == 0:
                os.execv("/bin/sleep", ["sleep", "7654"])
            made += 1
        except OSError:
            break
    open("/home/hermes/workspace/bomb", "w").write(str(made))
"""
HOG = """
import os
if os.fork() == 0:
    os.setsid()
    open("/home/hermes/workspace/hog", "w").write(str(os.getpid()))
    blocks = []
    while True:
        blocks.append(os.urandom(1 << 20))
"""
COUNT = "pgrep -xfc 'sleep 7654' || true"


def until(scene: Scene, look: str, seconds: float = 120) -> None:
    """Poll until a command of root's, over a connection of its own each time, prints something."""
    deadline = time.monotonic() + seconds
    while not scene.root(look).strip():
        assert time.monotonic() < deadline, look
        time.sleep(0.5)


@attack("bare-metal")
def more_processes_than_there_are(scene: Scene) -> None:
    scene.undo("rm -f /home/hermes/workspace/bomb; pkill -KILL -xf 'sleep 7654' || true")
    scene.agent_program(BOMB)
    until(scene, "cat /home/hermes/workspace/bomb 2>/dev/null || true")
    allowed = int(scene.root("systemctl show --property=TasksMax --value hermes-gateway.service"))
    assert 100 < int(scene.root(COUNT)) <= allowed == 2048
    # Root has room for its own.
    assert scene.root("for n in $(seq 50); do sleep 1 & done; wait; echo done").strip() == "done"
    scene.root("pkill -KILL -xf 'sleep 7654'")
    scene.restart()
    scene.proved()


@attack("bare-metal")
def more_memory_than_there_is(scene: Scene) -> None:
    # All services together have 700 MB more than they use now, as in a container that is so small. By then what takes
    # it all is larger than the gateway, and the largest is killed.
    scene.undo("rm -f /home/hermes/workspace/hog; systemctl set-property --runtime system.slice MemoryMax=infinity")
    used = "$(cat /sys/fs/cgroup/system.slice/memory.current)"
    scene.root(f"systemctl set-property --runtime system.slice MemoryMax=$(({used} + (700 << 20))) MemorySwapMax=0")
    # sshd itself, and when process 1 was started.
    same = "systemctl show --property=MainPID --value ssh.service; cut -d' ' -f22 /proc/1/stat"
    before = scene.root(same)
    scene.agent_program(HOG)
    hog = "pid=$(cat /home/hermes/workspace/hog 2>/dev/null)"
    until(scene, f'{hog}; test -z "$pid" || test -d "/proc/$pid" || echo killed')
    assert scene.root(same) == before
    scene.restart()
    scene.proved()
