#!/bin/sh
# Prolog of Slurm (slurm.conf: Prolog=...): tells the mount of this node which files the job will read, as
# `forebay run --via slurm` has noted them. Jobs of others are left alone. Never fails: a prolog that does
# drains the node.
#
# The comment of a job is "forebay MOUNTPOINT LIST". Only mounts that /etc/forebay/slurm.mounts names, one a
# line, are told anything; without that file all are.
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:${FOREBAY_PATH:-}
export PATH
umask 077

# No pattern of the comment is expanded.
set -f
# shellcheck disable=SC2086
set -- ${SLURM_JOB_COMMENT:-}
[ $# = 3 ] && [ "$1" = forebay ] || exit 0
mount=$2
list=$3
mounts=${FOREBAY_SLURM_MOUNTS:-/etc/forebay/slurm.mounts}
if [ -e "$mounts" ]; then
    grep -qxF -- "$mount" "$mounts" || exit 0
fi
# The list is read with the rights of the job's user, not with those of this script.
gid=$(id -g "$SLURM_JOB_UID") || exit 0
setpriv --reuid="$SLURM_JOB_UID" --regid="$gid" --clear-groups timeout 20 cat -- "$list" |
    timeout 60 forebay hint "$mount" --job "slurm-$SLURM_JOB_ID" --from - --expires 24h 2>&1 |
    logger -t forebay-prolog 2>/dev/null
exit 0
