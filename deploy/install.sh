#!/bin/sh
# Install vipwire in /opt/vipwire, with its own Python. Run as root:
#
#   sh install.sh                  the archive and SHA256SUMS lie beside this script
#   sh install.sh --from URL       fetch both from there, with curl or wget
#   sh install.sh --key KEY        also check the signature of SHA256SUMS, with minisign; KEY is the releaser's public key, or its file
#
# It starts nothing. A second run upgrades, and restarts the units that run. `vipwire uninstall` removes all.
set -eu

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

from= key=
while [ $# -gt 0 ]; do
    case $1 in
    --from) from=${2:?--from needs a folder or a URL} && shift 2 ;;
    --key) key=${2:?--key needs a minisign public key} && shift 2 ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0" && exit ;;
    *) fail "unknown option $1; allowed are --from URL and --key KEY" ;;
    esac
done

[ "$(uname -s)" = Linux ] || fail "vipwire needs Linux, and this is $(uname -s)"
case $(uname -m) in
x86_64) machine=amd64 ;;
aarch64) machine=arm64 ;;
*) fail "there is no archive for $(uname -m), only for x86_64 and aarch64; elsewhere: pip install (docs/install.md)" ;;
esac
[ "$(id -u)" = 0 ] || fail "run it as root: sudo sh $0"
[ ! -e /usr/lib/vipwire ] || fail "the Debian package is installed: apt-get remove vipwire, or apt-get install ./vipwire_*.deb"
if [ -e /opt/vipwire ] && [ ! -e /opt/vipwire/installed ]; then
    fail "/opt/vipwire exists and was not made by install.sh: move it away"
fi

folder=$(mktemp -d /opt/.vipwire-XXXXXX 2>/dev/null) || { mkdir -p /opt && folder=$(mktemp -d /opt/.vipwire-XXXXXX); }
# Until the new program runs, an end puts the former one back.
runs=
finish() {
    if [ -z "$runs" ] && [ -e "$folder/old" ]; then
        rm -rf /opt/vipwire
        mv "$folder/old" /opt/vipwire
    fi
    rm -rf "$folder"
}
trap finish EXIT
trap 'exit 1' HUP INT TERM
[ -n "$from" ] || from=$(cd "$(dirname "$0")" && pwd)

# Write a file of the release to the temporary folder.
get() {
    case $from in
    http://* | https://*)
        if command -v curl >/dev/null; then
            curl -fsSL -o "$folder/$1" "$from/$1"
        elif command -v wget >/dev/null; then
            wget -q -O "$folder/$1" "$from/$1"
        else
            fail "needs curl or wget to fetch $from/$1"
        fi ;;
    *) cp "$from/$1" "$folder/$1" ;;
    esac || fail "cannot get $from/$1"
}

get SHA256SUMS
if [ -n "$key" ]; then
    command -v minisign >/dev/null || fail "--key needs minisign"
    get SHA256SUMS.minisig
    if [ -f "$key" ]; then option=-p; else option=-P; fi
    minisign -Vqm "$folder/SHA256SUMS" "$option" "$key" || fail "SHA256SUMS is not signed with $key"
fi
archive=$(sed -n "s/^[0-9a-f]*  \(vipwire-.*-linux-$machine\.tar\.gz\)$/\1/p" "$folder/SHA256SUMS" | head -n 1)
[ -n "$archive" ] || fail "$from/SHA256SUMS names no archive for $machine"
get "$archive"
(cd "$folder" && grep "  $archive\$" SHA256SUMS | sha256sum -c - >/dev/null 2>&1) ||
    fail "$archive does not have the SHA-256 of SHA256SUMS: fetch it again"

tar -xzf "$folder/$archive" -C "$folder"
new=$folder/${archive%.tar.gz}
upgrade=
if [ -e /opt/vipwire ]; then
    upgrade=yes
    mv /opt/vipwire "$folder/old"
fi
mv "$new" /opt/vipwire
chmod 755 /opt/vipwire
if ! version=$(/opt/vipwire/bin/vipwire version 2>&1); then
    rm -rf /opt/vipwire
    fail "the new program does not run here: $version"
fi
runs=yes

# Make a folder, and note it for `vipwire uninstall`, which removes it if it is empty.
make() {
    [ ! -d "$1" ] || return 0
    make "$(dirname "$1")"
    mkdir "$1"
    echo "$1/" >>/opt/vipwire/installed
}

# Link or copy a file of the tree to a place outside of it, and note the place.
put() {
    make "$(dirname "$3")"
    if [ "$1" = link ]; then ln -sf "$2" "$3"; else cp "$2" "$3"; fi
    echo "$3" >>/opt/vipwire/installed
}
: >/opt/vipwire/installed
[ -z "$upgrade" ] || grep '/$' "$folder/old/installed" >/opt/vipwire/installed || true
put link /opt/vipwire/bin/vipwire /usr/local/bin/vipwire
for page in /opt/vipwire/share/man/man8/*; do put link "$page" "/usr/local/share/man/man8/${page##*/}"; done
put copy /opt/vipwire/share/completion/bash /usr/share/bash-completion/completions/vipwire
put copy /opt/vipwire/share/completion/zsh /usr/local/share/zsh/site-functions/_vipwire
put copy /opt/vipwire/share/completion/fish /usr/share/fish/vendor_completions.d/vipwire.fish
mkdir -p /etc/vipwire/services
[ -e /etc/vipwire/vipwire.env ] || cp /opt/vipwire/share/vipwire.env /etc/vipwire/vipwire.env
put copy /opt/vipwire/share/vipwire.service /etc/systemd/system/vipwire.service

if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    [ -z "$upgrade" ] || /opt/vipwire/bin/vipwire install systemd --upgrade
else
    echo "install.sh: systemd does not run here: start \`vipwire proxy\` or \`vipwire up\` by other means"
fi
echo "$version is installed in /opt/vipwire; next: vipwire up, or vipwire --help"
