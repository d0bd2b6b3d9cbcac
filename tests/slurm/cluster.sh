#!/usr/bin/env bash
#
# tests/slurm/cluster.sh - a real Slurm with several nodes on one Debian machine, for tests.
#
#   cluster.sh up [NODES]        start it (default 4 nodes n1 .. n4 of 2 processors each)
#   cluster.sh down              stop it
#   cluster.sh crash|start NODE  switch a node off or on
#   cluster.sh cut|join NODE     disconnect or connect its network
#   cluster.sh freeze|thaw       stop or continue Slurm's controller, which then does not answer
#   cluster.sh restart           restart the controller
#
# Every node is a network, UTS, PID and mount namespace, connected by veth to one bridge. Each has its
# own host name and /dev/shm; other files are shared. Killing the namespace's first process is a crash,
# and taking the link down is a network partition. Needs root, iproute2, munge and Debian's Slurm.
# Jobs in partition urgent preempt those in cancelled and requeued, after a grace of 10 and 6 s.
# Each node has two GPUs for Slurm, whose device files are /dev/null and /dev/zero: Slurm sets CUDA_VISIBLE_DEVICES.
# SLURM_CONF is not needed: /etc/slurm/slurm.conf is a link while the cluster runs.
set -euo pipefail

D=${TP_SLURM_DIR:-/var/lib/tp-slurm-test}
NET=10.78.0
BRIDGE=tpr0

node_start() { # NODE
    local n=$1 i=${1#n}
    ip netns list | grep -qw "tpr-$n" || ip netns add "tpr-$n"
    ip link show "tprv$i" >/dev/null 2>&1 || {
        ip link add "tprv$i" type veth peer name eth0 netns "tpr-$n"
        ip link set "tprv$i" master $BRIDGE up
        ip -n "tpr-$n" addr replace "$NET.$((10 + i))/24" dev eth0
        ip -n "tpr-$n" link set lo up
        ip -n "tpr-$n" link set eth0 up
        ip -n "tpr-$n" route replace default via "$NET.1"
    }
    mkdir -p "$D/spool/$n"
    setsid ip netns exec "tpr-$n" unshare --uts --pid --mount --fork --kill-child --mount-proc sh -c "
        hostname $n; mount --bind '$D/hosts' /etc/hosts; mount -t tmpfs none '$D/pmix'; mount -t tmpfs none /dev/shm
        slurmd -D -N $n & trap '' TERM INT HUP; while :; do wait; sleep 1000 & wait \$!; done" \
        >"$D/log/node-$n.out" 2>&1 </dev/null &
    echo $! >"$D/run/$n.pid"
}

node_crash() { # NODE
    local pid
    pid=$(cat "$D/run/$1.pid" 2>/dev/null) || return 0
    kill -9 -- "-$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null || true
}

controller_start() {
    setsid unshare --uts --mount sh -c "hostname tpctl; mount --bind '$D/hosts' /etc/hosts
        exec slurmctld -D" >>"$D/log/slurmctld.out" 2>&1 </dev/null &
    echo $! >"$D/run/ctl.pid"
}

write_conf() { # NODES
    cat >"$D/etc/slurm.conf" <<CONF
ClusterName=tp
SlurmctldHost=tpctl($NET.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$D/munge/run/socket
CryptoType=crypto/munge
SlurmctldPort=16917
SlurmdPort=16918
SlurmctldPidFile=$D/run/slurmctld.pid
SlurmdPidFile=$D/run/slurmd-%n.pid
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool/%n
SlurmctldLogFile=$D/log/slurmctld.log
SlurmdLogFile=$D/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SwitchType=switch/none
ReturnToService=1
SlurmdTimeout=10
SlurmctldTimeout=10
MessageTimeout=5
KillWait=5
InactiveLimit=0
MailProg=/bin/true
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2,permit_job_expansion
SlurmdParameters=config_overrides
NodeName=n[1-$1] NodeAddr=$NET.[11-$((10 + $1))] CPUs=2 RealMemory=1000 Gres=gpu:2 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PreemptMode=OFF
PartitionName=cancelled Nodes=ALL PreemptMode=CANCEL GraceTime=10
PartitionName=requeued Nodes=ALL PreemptMode=REQUEUE GraceTime=6
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF
CONF
    printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$D/etc/cgroup.conf"
    echo "PMIxCliTmpDirBase=$D/pmix" >"$D/etc/mpi.conf"
    ln -sfn /dev/null "$D/gpu/0" # Slurm wants device files, and numbers GPUs by the ends of their names
    ln -sfn /dev/zero "$D/gpu/1"
    echo "NodeName=n[1-$1] Name=gpu File=$D/gpu/[0-1]" >"$D/etc/gres.conf"
    install -d /etc/slurm
    local f
    for f in slurm.conf cgroup.conf mpi.conf gres.conf; do
        [ -L /etc/slurm/$f ] || [ ! -e /etc/slurm/$f ] || mv /etc/slurm/$f /etc/slurm/$f.before-tp
        ln -sfn "$D/etc/$f" /etc/slurm/$f
    done
}

write_hosts() { # NODES: the /etc/hosts of the nodes; the machine's own is not changed
    local i
    {
        echo "127.0.0.1 localhost"
        echo "$NET.1 tpctl $(hostname)"
        for i in $(seq 1 "$1"); do echo "$NET.$((10 + i)) n$i"; done
    } >"$D/hosts"
}

up() { # NODES
    local n=$1 end i
    [ "$(id -u)" = 0 ] || { echo "needs root (namespaces, munge)" >&2; exit 77; }
    for i in slurmctld slurmd munged ip; do
        command -v $i >/dev/null || { echo "needs $i" >&2; exit 77; }
    done
    down >/dev/null 2>&1 || true
    install -d -m 755 "$D" "$D"/{etc,log,run,spool,state,pmix,gpu}
    install -d -m 700 -o munge -g munge "$D/munge"
    install -d -m 755 -o munge -g munge "$D/munge/run"
    chmod 711 "$D/munge"
    rm -rf "$D"/{state,spool,log}/*
    [ -s "$D/munge/key" ] || {
        head -c 1024 /dev/urandom >"$D/munge/key"
        chown munge:munge "$D/munge/key"
        chmod 400 "$D/munge/key"
    }
    runuser -u munge -- munged --key-file "$D/munge/key" --socket "$D/munge/run/socket" \
        --pid-file "$D/munge/run/munged.pid" --seed-file "$D/munge/seed" \
        --log-file "$D/munge/munged.log" --num-threads 2
    ip link show $BRIDGE >/dev/null 2>&1 || ip link add $BRIDGE type bridge
    ip addr replace "$NET.1/24" dev $BRIDGE
    ip link set $BRIDGE up
    write_hosts "$n"
    write_conf "$n"
    controller_start
    for i in $(seq 1 "$n"); do node_start "n$i"; done
    end=$((SECONDS + 40))
    until [ "$(timeout 3 sinfo -h -N -p main -o %t 2>/dev/null | grep -c '^idle$')" = "$n" ]; do
        [ $SECONDS -lt $end ] || { echo "not all of $n nodes are idle; see $D/log" >&2; exit 1; }
        sleep 0.2
    done
}

down() {
    local f ns
    for f in "$D"/run/n*.pid; do
        [ -e "$f" ] || continue
        ns=${f##*/}
        node_crash "${ns%.pid}"
    done
    if [ -s "$D/run/ctl.pid" ]; then kill -9 "$(cat "$D/run/ctl.pid")" 2>/dev/null || true; fi
    if [ -s "$D/munge/run/munged.pid" ]; then
        kill -9 "$(cat "$D/munge/run/munged.pid")" 2>/dev/null || true
        rm -f "$D"/munge/run/*
    fi
    for ns in $(ip netns list | awk '/^tpr-n/{print $1}'); do
        ip netns pids "$ns" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
        ip link del "tprv${ns#tpr-n}" 2>/dev/null || true # otherwise it disappears later
        ip netns del "$ns"
    done
    ip link del $BRIDGE 2>/dev/null || true
    for f in slurm.conf cgroup.conf mpi.conf gres.conf; do
        if [ "$(readlink /etc/slurm/$f 2>/dev/null)" = "$D/etc/$f" ]; then rm -f /etc/slurm/$f; fi
        if [ -e /etc/slurm/$f.before-tp ]; then mv /etc/slurm/$f.before-tp /etc/slurm/$f; fi
    done
    rm -f "$D"/run/*
}

case ${1:-} in
up) up "${2:-4}" ;;
down) down ;;
crash) node_crash "$2" ;;
start) node_start "$2" ;;
cut) ip link set "tprv${2#n}" down ;;
restart)
    kill -9 "$(cat "$D/run/ctl.pid")"
    controller_start
    ;;
freeze) kill -STOP "$(cat "$D/run/ctl.pid")" ;;
thaw) kill -CONT "$(cat "$D/run/ctl.pid")" ;;
join) ip link set "tprv${2#n}" up ;;
*) sed -n '3,11s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
