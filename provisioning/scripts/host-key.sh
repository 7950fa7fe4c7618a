#!/bin/sh
# In a container that was cloned from a golden template, at each boot and before sshd: keys of its own, and the proof of
# them. The template has none. Proxmox shows the addresses of the container's loopback to whoever may ask it, and only
# the container's root can set them: so three addresses there tell the SHA-256 of the public key (proxmox/hostkeys.py
# reads them).
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
key=/etc/ssh/ssh_host_ed25519_key
if [ ! -s "$key" ] || [ ! -s "$key.pub" ]; then
  rm -f "$key" "$key.pub" "$key.new" "$key.new.pub"
  ssh-keygen -q -t ed25519 -N '' -C "root@$(cat /etc/hostname)" -f "$key.new"
  mv "$key.new.pub" "$key.pub"
  mv "$key.new" "$key"
fi
# 32 bytes of the digest and 10 that say what it is: 3 times 14.
digest=$(cut -d' ' -f2 "$key.pub" | base64 -d | sha256sum | cut -c-64)$(printf %s hp-hostkey | od -An -v -tx1 | tr -d ' \n')
for part in 1 2 3; do
  bytes=$(printf %s "$digest" | cut -c"$((part * 28 - 27))-$((part * 28))")
  ip -6 address replace "$(printf 'fd0%s%s' "$part" "$bytes" | sed 's/..../&:/g; s/:$//')/128" dev lo
done
# Debian's ready-made TLS key is a secret of each machine, too.
if [ -x /usr/sbin/make-ssl-cert ] && [ ! -s /etc/ssl/private/ssl-cert-snakeoil.key ]; then
  /usr/sbin/make-ssl-cert generate-default-snakeoil --force-overwrite
fi
