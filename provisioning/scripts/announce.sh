#!/bin/bash
# In a container that was cloned from a golden template, at each boot: one packet to its gateway, to the port that throws
# it away. The kernel asks for the gateway's card first, and all that hear it learn who has the container's address now.
# A clone has nothing to send by itself. So whoever spoke with the container before it at this address would go on sending
# to that one's card: for up to a minute under Linux, for longer elsewhere.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
gateway=$(ip -4 route show default | sed -n 's/.* via \([0-9.]*\).*/\1/p;q')
[ -z "$gateway" ] || echo >"/dev/udp/$gateway/9"
