# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# shellcheck disable=SC2034 # ENVIRONMENT and BED_HOSTS are for job_kit.sh
# Cases of jobs.sh: whole jobs, embedded and with daemons, by the variables of other launchers.

embedded()
{
	four_shapes embedded
}

with_daemons()
{
	local host rc=0 daemons=()
	for host in "${BED_HOSTS[@]}"; do
		bed_on "$host" ep-fabric run --instance=main --node="$host" --fabric-secret-file="$BED/fabric.secret" >"$OUT/daemon.$host" 2>&1 &
		daemons+=($!)
	done
	for host in "${BED_HOSTS[@]}"; do
		await "$OUT/daemon.$host" 'main: ready' $$ || return 1
	done
	ENVIRONMENT=(EPF_SERVICE=main)
	four_shapes daemons || rc=1
	ENVIRONMENT=()
	for host in "${BED_HOSTS[@]}"; do
		bed_on "$host" pkill -TERM -x ep-fabric
		await "$OUT/daemon.$host" 'launch-.*: ended' $$ || rc=1
	done
	for host in "${daemons[@]}"; do
		wait "$host" || { echo "a daemon ended with $?" && rc=1; }
	done
	return "$rc"
}

# connections: established connections of alpha's engines to beta, those to the rendezvous left out; by cable
connections()
{
	# Addresses of a socket for both families look like [::ffff:10.77.1.1]:29999.
	bed_on alpha ss -tnH state established | sed 's/\[::ffff:\([0-9.]*\)\]/\1/g' | awk '$3 !~ /:29999$/ && $4 !~ /:29999$/ { sub(/:[0-9]*$/, "", $3); print $3 }' |
		sort | uniq -c | awk '{ printf "%s%d by %s", sep, $1, $2; sep = ", " }'
}

# A daemon's connections to another: as many with one rank a host as with four, one for each of two cables, one at the least.
connections_of_daemons()
{
	local host ranks lanes cables want got daemons rc=0
	while read -r lanes cables want <&3; do
		daemons=()
		for host in "${BED_HOSTS[@]}"; do
			bed_on "$host" ep-fabric run --instance=main --node="$host" --fabric-secret-file="$BED/fabric.secret" --lanes-per-peer="$lanes" \
				--socket-ifname="$cables" >"$OUT/daemon.$host" 2>&1 &
			daemons+=($!)
		done
		for host in "${BED_HOSTS[@]}"; do
			await "$OUT/daemon.$host" 'main: ready' $$ || return 1
		done
		for ranks in 1 4; do
			ENVIRONMENT=(EPF_SERVICE=main)
			start_ranks "$ranks" ep-bench moe --launched "${LONG[@]}" --tokens 32
			await "$OUT/rank.0" 'round 3 of' "${PIDS[0]}" || return 1
			got=$(connections)
			runs_still "its connections were counted" || return 1
			all_right || return 1
			echo "# $ranks ranks a host, lanes-per-peer $lanes, $cables: $got"
			[ "$got" = "$want" ] || { echo "wanted $want" && rc=1; }
		done
		for host in "${BED_HOSTS[@]}"; do
			bed_on "$host" pkill -TERM -x ep-fabric
		done
		wait "${daemons[@]}" || { echo "a daemon ended with $?" && rc=1; }
	done 3<<-END
		1 eth1 1 by 10.77.1.1
		2 eth1 2 by 10.77.1.1
		2 eth1,eth2 1 by 10.77.1.1, 1 by 10.77.2.1
	END
	return "$rc"
}

# as_launcher NAME FORMAT: a job whose ranks have the variables of a launcher; FORMAT: those of rank R, local rank L, node N, host H
as_launcher()
{
	local host i n=0 words
	PIDS=()
	for host in alpha beta; do
		for i in 0 1; do
			words=${2//@R/$n} words=${words//@L/$i} words=${words//@N/$((n / 2))} words=${words//@H/$host}
			# shellcheck disable=SC2086
			bed_on "$host" timeout -k 5 "$LIMIT" env EPF_NIC=tcp EPF_SECRET_FILE="$BED/job.secret" $words ep-bench moe --launched "${SMALL[@]}" \
				>"$OUT/rank.$n" 2>&1 &
			PIDS+=($!)
			n=$((n + 1))
		done
	done
	all_right || { echo "with the variables of $1" && return 1; }
}

# What torchrun, srun and mpirun set.
launchers()
{
	local rc=0
	as_launcher torchrun 'RANK=@R WORLD_SIZE=4 LOCAL_RANK=@L LOCAL_WORLD_SIZE=2 GROUP_RANK=@N MASTER_ADDR=alpha MASTER_PORT=29400 TORCHELASTIC_RUN_ID=none' || rc=1
	as_launcher srun 'SLURM_PROCID=@R SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=@L SLURM_NODEID=@N SLURM_STEP_NODELIST=alpha,beta SLURM_JOB_ID=17 SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURMD_NODENAME=@H' || rc=1
	as_launcher mpirun 'OMPI_COMM_WORLD_RANK=@R OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=@L OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=prterun-alpha-9@1 MASTER_ADDR=alpha' || rc=1
	return "$rc"
}

# mpirun itself (Open MPI), from alpha, by ssh. Beside rank 0 its variables name the host of the rendezvous; elsewhere it is said how to.
mpirun_itself()
{
	local run=(bed_on alpha timeout -k 5 "$LIMIT" env EPF_NIC=tcp EPF_SECRET_FILE="$BED/job.secret" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
		mpirun -n 4 -x EPF_NIC -x EPF_SECRET_FILE)
	command -v mpirun >/dev/null || { echo "no mpirun here (package openmpi-bin)" && return 77; }
	ssh_hosts || return
	"${run[@]}" --host alpha:2,beta:2 ep-bench moe --launched "${SMALL[@]}" >"$OUT/beside" 2>&1 || { cat "$OUT/beside" && echo "mpirun failed" && return 1; }
	right "$OUT/beside" 2 || return 1
	! "${run[@]}" --host beta:2,gamma:2 ep-bench moe --launched "${SMALL[@]}" >"$OUT/elsewhere" 2>&1 || { echo "nobody names the host of rank 0" && return 1; }
	grep -q 'rank 0 runs on another host than mpirun.*mpirun -x MASTER_ADDR=HOST' "$OUT/elsewhere" || { cat "$OUT/elsewhere" && echo "no remedy" && return 1; }
	"${run[@]}" --host beta:2,gamma:2 -x MASTER_ADDR=beta ep-bench moe --launched "${SMALL[@]}" >"$OUT/named" 2>&1 || { cat "$OUT/named" && echo "mpirun failed" && return 1; }
	right "$OUT/named" 2
}

# A cluster of Slurm: its controller on alpha, a daemon on every host.
slurm_hosts()
{
	local host
	for host in srun sinfo slurmctld slurmd munged; do
		command -v "$host" >/dev/null || { echo "no $host here (packages slurm-client, slurmctld, slurmd, munge)" && return 77; }
	done
	(umask 077 && head -c 128 /dev/urandom >"$BED/munge.key") || return 1
	cat >"$BED/slurm.conf" <<-END
		ClusterName=hosts
		SlurmctldHost=alpha
		SlurmUser=root
		AuthInfo=socket=/run/munge.sock
		StateSaveLocation=/tmp/slurmctld
		SlurmdSpoolDir=/tmp/slurmd
		SlurmctldPidFile=/run/slurmctld.pid
		SlurmdPidFile=/run/slurmd.pid
		ProctrackType=proctrack/linuxproc
		TaskPlugin=task/none
		MpiDefault=none
		MailProg=/bin/true
		ReturnToService=2
		SlurmdParameters=config_overrides
		NodeName=alpha,beta CPUs=2 State=UNKNOWN
		PartitionName=all Nodes=ALL Default=YES State=UP
	END
	echo CgroupPlugin=cgroup/v1 >"$BED/cgroup.conf" # the one that begins without a mounted cgroup
	for host in "${BED_HOSTS[@]}"; do
		bed_on "$host" munged --foreground --force --key-file="$BED/munge.key" --socket=/run/munge.sock --pid-file=/run/munged.pid --seed-file=/run/munged.seed \
			--log-file=/run/munged.log >"$OUT/munged.$host" 2>&1 </dev/null &
		bed_on "$host" timeout "$LIMIT" bash -c 'until [ -S /run/munge.sock ]; do sleep 0.05; done; mkdir -p /tmp/slurmctld /tmp/slurmd' ||
			{ cat "$OUT/munged.$host" && echo "$host: munged makes no socket" && return 1; }
	done
	bed_on alpha env SLURM_CONF="$BED/slurm.conf" slurmctld -D >"$OUT/slurmctld" 2>&1 </dev/null &
	for host in "${BED_HOSTS[@]}"; do
		bed_on "$host" env SLURM_CONF="$BED/slurm.conf" slurmd -D -N "$host" >"$OUT/slurmd.$host" 2>&1 </dev/null &
	done
	# srun gives a controller that is not there yet 10 s.
	# shellcheck disable=SC2016
	bed_on alpha timeout "$LIMIT" env SLURM_CONF="$BED/slurm.conf" bash -c 'until [ "$(sinfo -h -t idle -o %D 2>&1)" = 2 ]; do sleep 0.2; done' ||
		{ tail -n 5 "$OUT"/slurm* && echo "the nodes of Slurm do not become idle" && return 1; }
}

# srun itself, from alpha
srun_itself()
{
	slurm_hosts || return
	bed_on alpha timeout -k 5 "$LIMIT" env SLURM_CONF="$BED/slurm.conf" EPF_NIC=tcp EPF_SECRET_FILE="$BED/job.secret" \
		srun -N 2 -n 4 ep-bench moe --launched "${SMALL[@]}" >"$OUT/srun" 2>&1 || { cat "$OUT/srun" && echo "srun failed" && return 1; }
	right "$OUT/srun" 2
}

torchrun_itself()
{
	local host n=0
	PIDS=()
	command -v torchrun >/dev/null || { echo "no torchrun here (package python3-torch)" && return 77; }
	# PyTorch 1.13 needs it with Python 3.11, which no longer lists a flag of value 0.
	python3 -c 'import torch.distributed.elastic.multiprocessing as m; m.Std.from_str("0").name' 2>/dev/null || { echo "this torchrun does not work with this Python" && return 77; }
	for host in alpha beta; do
		bed_on "$host" timeout -k 5 "$LIMIT" env EPF_NIC=tcp EPF_SECRET_FILE="$BED/job.secret" torchrun --nnodes 2 --node_rank "$n" --nproc_per_node 2 \
			--master_addr alpha --master_port 29400 --redirects 3 --tee 3 --log_dir /tmp \
			--no_python "$BUILD/bench/ep-bench" moe --launched "${SMALL[@]}" >"$OUT/rank.$n" 2>&1 &
		PIDS+=($!)
		n=$((n + 1))
	done
	all_right
}
