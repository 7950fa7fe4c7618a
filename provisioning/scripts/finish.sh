#!/bin/sh
# systemd runs this after a job, however it ended, with SERVICE_RESULT, EXIT_CODE and EXIT_STATUS set.
rm -f "$HP_SECRETS"
printf '%s %s %s\n' "$SERVICE_RESULT" "$EXIT_CODE" "$EXIT_STATUS" >"$HP_END.part"
mv "$HP_END.part" "$HP_END"
