#!/bin/sh
# Epilog of Slurm (slurm.conf: Epilog=...): the mount of this node forgets what the job was going to read, and
# writes what the job has made, as `forebay run --via slurm` has noted it, to the backing store. See prolog.sh.
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:${FOREBAY_PATH:-}
export PATH
umask 077

set -f
# shellcheck disable=SC2086
set -- ${SLURM_JOB_COMMENT:-}
[ $# = 3 ] && [ "$1" = forebay ] || exit 0
mount=$2
made=${3%.list}.made
mounts=${FOREBAY_SLURM_MOUNTS:-/etc/forebay/slurm.mounts}
if [ -e "$mounts" ]; then
    grep -qxF -- "$mount" "$mounts" || exit 0
fi
gid=$(id -g "$SLURM_JOB_UID") || exit 0
{
    timeout 20 forebay hint "$mount" --job "slurm-$SLURM_JOB_ID" --withdraw
    setpriv --reuid="$SLURM_JOB_UID" --regid="$gid" --clear-groups timeout 20 cat -- "$made" 2>/dev/null |
        while IFS= read -r path; do
            case /$path/ in */../*) continue ;; esac
            [ -e "$mount/$path" ] && timeout 600 forebay sync --quiet -- "$mount/$path"
        done
} 2>&1 | logger -t forebay-epilog 2>/dev/null
exit 0
