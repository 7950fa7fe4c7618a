"""Out of the sandbox and in again: by sshd, cron, or a systemd of the account's own.

What the agent plants for it lies on the volume, or is asked of the guest's services; the container is no matter.
"""

from __future__ import annotations

import paramiko
import pytest

from tests.attacks.attack import Scene, attack

# Of the account's: what cron would run, and what has its systemd started at boot.
JOBS = "find /var/spool/cron /var/lib/systemd/linger -type f 2>/dev/null || true"


def planted_key(scene: Scene) -> paramiko.PKey:
    """The key whose public half the agent has made an authorized one of its account."""
    key = paramiko.RSAKey.generate(2048)
    line = f"{key.get_name()} {key.get_base64()} planted"
    scene.agent(f"umask 077; mkdir -p /home/hermes/.ssh; echo '{line}' >/home/hermes/.ssh/authorized_keys")
    assert line in scene.root("cat /home/hermes/.ssh/authorized_keys")
    return key


def refused(scene: Scene, key: paramiko.PKey) -> None:
    """sshd knows the key's file, and does not let the account in."""
    with paramiko.Transport((scene.guest.address, 22)) as line:
        line.start_client(timeout=30)
        with pytest.raises(paramiko.AuthenticationException):
            line.auth_publickey("hermes", key)
        # And a password is not asked for.
        with pytest.raises(paramiko.BadAuthenticationType):
            line.auth_password("hermes", "hermes")


@attack()
def a_key_of_its_own(scene: Scene) -> None:
    scene.undo("rm -rf /home/hermes/.ssh")
    key = planted_key(scene)
    refused(scene, key)
    # Root's own way in stays, by its key alone.
    assert scene.root("sshd -T | grep -i ^passwordauthentication") == "passwordauthentication no\n"


@attack("bare-metal")
def a_key_on_the_volume_of_a_new_container(scene: Scene) -> None:
    """It outlives destroy and up, as all does that is in the home."""
    scene.undo("rm -rf /home/hermes/.ssh")
    key = planted_key(scene)
    scene.renew()
    assert key.get_base64() in scene.root("cat /home/hermes/.ssh/authorized_keys")
    refused(scene, key)


@attack()
def jobs_and_a_manager_of_its_own(scene: Scene) -> None:
    # From inside of its sandbox, with what it finds there.
    scene.agent("echo '* * * * * touch /home/hermes/cron-was-here' | crontab -; loginctl enable-linger")
    # And with all that its account may, outside of any.
    account = "cd / && runuser -u hermes --"
    assert "not allowed" in scene.root(f"{account} sh -c \"echo '* * * * * true' | crontab -\" || true")
    assert scene.root(JOBS) == ""
    scene.root("systemctl start user@10000.service && exit 1 || true")
    assert scene.root("systemctl is-active user@10000.service || true").strip() == "inactive"
    assert "not available" in scene.root(f"{account} true; su - hermes -c id || true")


@attack("bare-metal")
def an_account_that_was_opened_by_hand(scene: Scene) -> None:
    """As a container of an earlier version has it: verify tells, and the next baseline closes it."""
    scene.undo("rm -rf /home/hermes/.ssh; rm -f /etc/cron.allow /etc/at.deny; echo root >/etc/at.allow")
    key = planted_key(scene)
    scene.root(
        "rm /etc/ssh/sshd_config.d/50-hermes-stack.conf /etc/at.allow; systemctl reload ssh\n"
        # Lists that an operator keeps: theirs count, and stay.
        "printf '%s\\n' root hermes bob >/etc/cron.allow; printf '%s\\n' bob >/etc/at.deny\n"
        "usermod --shell /bin/bash hermes; systemctl unmask --quiet user@10000.service\n"
        "echo '* * * * * sleep 1' >/tmp/job; crontab -u hermes /tmp/job; loginctl enable-linger hermes"
    )
    status, _, said = scene.prove()
    assert status != 0
    for words in ("its shell is /bin/bash", "sshd lets it in", "cron takes jobs", "its own systemd"):
        assert words in said, said
    line = paramiko.SSHClient()
    line.set_missing_host_key_policy(paramiko.AutoAddPolicy())  # noqa: S507 - of a guest of the lab
    line.connect(scene.guest.address, username="hermes", pkey=key, look_for_keys=False, allow_agent=False, timeout=30)
    # What it leaves running goes with the session's end, too.
    line.exec_command("setsid nohup sleep 6543 >/dev/null 2>&1 </dev/null & sleep 1")[1].channel.recv_exit_status()
    assert scene.root("pgrep -xfc 'sleep 6543'").strip() == "1"
    scene.baseline()
    line.close()
    refused(scene, key)
    assert scene.root("pgrep -xfc 'sleep 6543' || true").strip() == "0"
    assert scene.root(JOBS) == ""
    assert scene.root("cat /etc/cron.allow; echo; cat /etc/at.deny").split() == ["root", "bob", "bob", "hermes"]
    scene.proved()


@attack("bare-metal")
def the_command_line_gains_nothing(scene: Scene) -> None:
    """A conversation by `hermes` has no sandbox, and no setuid program gives its tools more than the account has."""
    scene.undo("rm -f /usr/local/bin/as-root")
    scene.root("install -m 4755 /usr/bin/id /usr/local/bin/as-root")
    assert "euid=0(root)" in scene.root("cd / && runuser -u hermes -- as-root")
    assert "euid" not in scene.root("hermes -z 'run: as-root' </dev/null")
