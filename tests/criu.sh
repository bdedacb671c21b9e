#!/bin/bash
# Brings CRIU of a newer Debian into a directory, with the libraries that it needs, and changes
# nothing else of the system: tests/criu.sh DIR [SUITE]
#
# Then DIR/criu is the program (FOREBAY_CRIU=DIR/criu). For systems whose own CRIU is older than
# 4.1. Needs apt-get, dpkg-deb, a network, and Debian's keys (debian-archive-keyring).
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
DIR=$(cd "$1" && pwd)
SUITE=${2:-trixie}
KEYS=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $KEYS ] || { echo "criu.sh: $KEYS is missing: install debian-archive-keyring" >&2; exit 1; }

APT=$DIR/apt
mkdir -p "$APT/lists/partial" "$APT/cache/archives/partial" "$DIR/root" "$APT/debs"
touch "$APT/status"
echo "deb [signed-by=$KEYS] http://deb.debian.org/debian $SUITE main" >"$APT/sources.list"
cat >"$APT/conf" <<END
Dir::State "$APT";
Dir::State::status "$APT/status";
Dir::Cache "$APT/cache";
Dir::Etc::sourcelist "$APT/sources.list";
Dir::Etc::sourceparts "/dev/null";
APT::Sandbox::User "$(id -un)";
APT::Install-Recommends "false";
Acquire::Retries "3";
END
export APT_CONFIG=$APT/conf
apt-get update -qq
# With no package installed, as this list of packages says, all that CRIU needs is to be installed.
mapfile -t packages < <(apt-get -s install criu | sed -n 's/^Inst \([^ ]*\) .*/\1/p')
(cd "$APT/debs" && apt-get download -qq "${packages[@]}")
for package in "$APT"/debs/*.deb; do
    dpkg-deb -x "$package" "$DIR/root"
done
loader=$(find "$DIR/root" -name 'ld-linux*.so.*' | head -n 1)
libraries=$(dirname "$(find "$DIR/root" -name 'libc.so.6' | head -n 1)")
# `exec`: who restores a process tree is its parent.
cat >"$DIR/criu" <<END
#!/bin/sh
exec '$loader' --library-path '$libraries' '$DIR/root/usr/sbin/criu' "\$@"
END
chmod 755 "$DIR/criu"
rm -rf "$APT"
"$DIR/criu" --version
