#!/usr/bin/env bash
#
# tests/radosgw/cluster.sh - a real Ceph with its S3 gateway on one Debian machine, for tests.
#
#   cluster.sh up ACCESS_KEY SECRET_KEY     start it; prints the URL of the gateway
#   cluster.sh down                         stop it, and remove its files
#
# It is one monitor, one OSD whose store is its memory, and radosgw with one user. All are ordinary
# processes that listen on 127.0.0.1 only, and their files are in TP_RADOSGW_DIR (/var/tmp/tp-radosgw).
# Nothing of Ceph's own on this machine is read or changed. Without Debian's packages radosgw,
# ceph-mon and ceph-osd, `up` says what is missing and ends with 77.
set -euo pipefail

D=${TP_RADOSGW_DIR:-/var/tmp/tp-radosgw}
PORT=${TP_RADOSGW_PORT:-16780} # of the gateway; the monitor has the two after it, and a second attempt the three after these
FSID=7d9e2a10-8f3e-4d3c-9f51-1c3b6d1f5a01
OSD=5c1f0a7e-53d3-4ff5-9a90-9f7e8e6cbb01
export CEPH_CONF=$D/ceph.conf

write_conf() {
    cat >"$CEPH_CONF" <<CONF
[global]
fsid = $FSID
mon host = $MONITOR
keyring = $D/keyring
run dir = $D/run
admin socket = $D/run/\$name.asok
log file = $D/log/\$name.log
mon cluster log file = $D/log/cluster.log
mon data = $D/mon
mon data avail crit = 0
mon allow pool size one = true
osd data = $D/osd
osd objectstore = memstore
memstore device bytes = 2147483648
osd memory target = 939524096
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
rgw data = $D/rgw
rgw frontends = beast endpoint=127.0.0.1:$PORT
CONF
}

write_keyring() {
    local k=$D/keyring
    ceph-authtool --create-keyring "$k" --gen-key -n mon. --cap mon 'allow *'
    ceph-authtool "$k" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *'
    ceph-authtool "$k" --gen-key -n client.rgw --cap mon 'allow rw' --cap osd 'allow rwx'
    ceph-authtool "$k" --gen-key -n osd.0 --cap mon 'allow *' --cap osd 'allow *'
}

start() { # NAME COMMAND...
    setsid "${@:2}" >"$D/log/$1.out" 2>&1 </dev/null &
    echo $! >"$D/run/$1.pid"
}

# Run a command that ends at once, or, while the monitor does not answer, never.
limited() { # COMMAND...
    timeout -k 5 60 "$@"
}

# Each step needs the one before it, so the first that fails is the last.
start_all() { # ACCESS_KEY SECRET_KEY
    mkdir -p "$D"/{mon,osd,rgw,log,run} && write_conf && write_keyring &&
        monmaptool --create --addv a "$MONITOR" --fsid $FSID "$D/monmap" &&
        limited ceph-mon -i a --mkfs --monmap "$D/monmap" &&
        start mon ceph-mon -i a -f &&
        limited ceph osd new $OSD &&
        limited ceph-osd -i 0 --mkfs --osd-uuid $OSD &&
        start osd ceph-osd -i 0 -f &&
        limited radosgw-admin user create --uid tests --display-name tests --access-key "$1" --secret-key "$2" &&
        start rgw radosgw -n client.rgw -f &&
        limited curl -s -o /dev/null --retry 300 --retry-delay 1 --retry-connrefused "http://127.0.0.1:$PORT/"
}

# The last lines of each log, which say what did not start.
show_logs() {
    tail -n 5 "$D/log/up" "$D"/log/*.out "$D"/log/*.log >&2 || true
}

up() { # ACCESS_KEY SECRET_KEY
    local p attempt
    for p in ceph-mon ceph-osd radosgw radosgw-admin ceph ceph-authtool monmaptool curl; do
        command -v $p >/dev/null || { echo "needs $p" >&2; exit 77; }
    done
    # On a busy machine the monitor once did not answer at all, and then nothing else starts.
    for attempt in 1 2; do
        down
        mkdir -p "$D/log"
        MONITOR="[v2:127.0.0.1:$((PORT + 1)),v1:127.0.0.1:$((PORT + 2))]"
        if start_all "$1" "$2" >"$D/log/up" 2>&1; then
            echo "http://127.0.0.1:$PORT"
            return
        fi
        echo "Ceph did not start, attempt $attempt of 2:" >&2
        show_logs
        PORT=$((PORT + 3)) # another program may have one of these
    done
    exit 1
}

down() {
    local p
    for p in rgw osd mon; do
        if [ -s "$D/run/$p.pid" ]; then kill -9 "$(cat "$D/run/$p.pid")" 2>/dev/null || true; fi
    done
    rm -rf "$D"
}

case ${1:-} in
up) up "$2" "$3" ;;
down) down ;;
*) sed -n '3,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
