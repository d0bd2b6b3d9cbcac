#!/usr/bin/env bash
#
# tests/slurm/accounts.sh - accounts for the cluster of cluster.sh: slurmdbd with its own MariaDB.
#
#   accounts.sh up     root may use the account phys with QOS normal and slow, and nothing else
#   accounts.sh down   stop it; the cluster must be stopped too
#
# Needs slurmdbd, Debian's slurm-wlm-mysql-plugin and mariadb-server. The database is in the folder
# of the test and listens only on a socket there.
set -euo pipefail

D=${TP_SLURM_DIR:-/var/lib/tp-slurm-test}
SOCKET=$D/db/run/mysqld.sock

wait_for() { # SECONDS COMMAND...
    local end=$((SECONDS + $1))
    shift
    until timeout 5 "$@" </dev/null >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { echo "$1 does not succeed; see $D/log" >&2; exit 1; }
        sleep 0.1
    done
}

write_conf() {
    cat >"$D/etc/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$D/munge/run/socket
DbdHost=localhost
DbdPort=16919
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
LogFile=$D/log/slurmdbd.log
PidFile=$D/run/slurmdbd.pid
CONF
    chmod 600 "$D/etc/slurmdbd.conf"
    ln -sfn "$D/etc/slurmdbd.conf" /etc/slurm/slurmdbd.conf
    sed -i "s#^AccountingStorageType=.*#AccountingStorageType=accounting_storage/slurmdbd\\
AccountingStorageHost=localhost\\
AccountingStoragePort=16919\\
AccountingStoragePass=$D/munge/run/socket\\
AccountingStorageEnforce=associations,limits,qos#" "$D/etc/slurm.conf"
}

up() {
    rm -rf "$D/db"
    install -d -o mysql "$D/db" "$D/db/run"
    mariadb-install-db --user=mysql --datadir="$D/db/data" --skip-test-db >"$D/log/db-install.out" 2>&1
    setsid mariadbd --no-defaults --user=mysql --datadir="$D/db/data" --socket="$SOCKET" --skip-networking \
        --skip-grant-tables --innodb-flush-log-at-trx-commit=0 --pid-file="$D/db/pid" \
        >"$D/log/mariadb.out" 2>&1 </dev/null &
    wait_for 30 mariadb-admin --socket="$SOCKET" ping
    write_conf
    mkdir -p /run/mysqld # where slurmdbd looks for the socket
    setsid unshare --uts --mount sh -c "hostname tpctl; mount --bind '$D/hosts' /etc/hosts
        mount --bind '$D/db/run' /run/mysqld; exec slurmdbd -D" >"$D/log/slurmdbd.out" 2>&1 </dev/null &
    echo $! >"$D/run/dbd.pid"
    wait_for 30 sacctmgr -n show cluster
    {
        sacctmgr -i add cluster tp
        sacctmgr -i add account phys
        sacctmgr -i add qos slow
        sacctmgr -i add user root account=phys
        sacctmgr -i modify user root where account=phys set qos=normal,slow
    } >"$D/log/sacctmgr.out"
    "$(dirname "$0")/cluster.sh" restart
    wait_for 30 sinfo
}

down() {
    local f
    for f in "$D/run/dbd.pid" "$D/db/pid"; do
        if [ -s "$f" ]; then kill -9 "$(cat "$f")" 2>/dev/null || true; fi
    done
    if [ "$(readlink /etc/slurm/slurmdbd.conf 2>/dev/null)" = "$D/etc/slurmdbd.conf" ]; then
        rm -f /etc/slurm/slurmdbd.conf
    fi
    rm -rf "$D/db"
}

case ${1:-} in
up) up ;;
down) down ;;
*) sed -n '3,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
