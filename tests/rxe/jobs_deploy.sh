# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Group deploy of jobs.sh: the commands of docs/guides/two-hosts.md, taken from that page, on two "hosts" of this guest: each has a home, a
# runtime directory, an environment and an RDMA device of its own, and the name beta. Sourced by jobs.sh. A command of the page
# is preceded by a line <!-- guest: HOST[ &]: PATTERN -->, with HOST alpha, beta, both or no; & leaves it running; its output must match
# PATTERN (grep -Pzo with m), and it must end with 0. It must never have commands of its own for what the page says.

DEPLOY=/run/deploy
PAGE=$HERE/../../docs/guides/two-hosts.md

# The guest's root is read-only: a scp that knows one destination, and a hosts file over the other one.
deploy_hosts()
{
	local host
	mkdir -p "$DEPLOY/bin"
	printf '127.0.0.1 localhost alpha beta\n' >"$DEPLOY/hosts"
	mount --bind "$DEPLOY/hosts" /etc/hosts || return 1
	# shellcheck disable=SC2016
	printf '#!/bin/sh\nexec cp -p "$2" %s/${3%%:}/\n' "$DEPLOY" >"$DEPLOY/bin/scp"
	chmod +x "$DEPLOY/bin/scp"
	for host in alpha beta; do
		mkdir "$DEPLOY/$host" && mkdir -m 700 "$DEPLOY/$host/run" || return 1
		{
			printf 'export HOME=%q EPF_RUNTIME_DIR=%q EPF_STATS_DIR=%q\n' "$DEPLOY/$host" "$DEPLOY/$host/run" "$DEPLOY/$host/run"
			printf 'export PATH=%q\n' "$DEPLOY/bin:$BUILD/tools:$BUILD/bench:$PATH"
			printf 'cd %q\n' "$DEPLOY/$host"
		} >"$DEPLOY/$host.env"
	done
}

device_of()
{
	[ "$1" = alpha ] && echo rxe0 || echo rxe1
}

# run_on HOST COMMAND: with that host's environment, which the command may change
run_on()
{
	local env=$DEPLOY/$1.env command=${2//mlx5_0/$(device_of "$1")}
	# shellcheck disable=SC2016
	bash -c '. "$1" && eval "$2"; rc=$?; case $2 in export\ *) printf "%s\n" "$2" >>"$1" ;; esac; exit $rc' \
		sh "$env" "$command"
}

# start_on HOST COMMAND: becomes that command: to be called in the background, whose process it then is
start_on()
{
	# shellcheck disable=SC2016
	exec bash -c '. "$1" && eval "exec $2"' sh "$DEPLOY/$1.env" "$2"
}

# answers HOST PATTERN FILE
answers()
{
	[ "$2" = . ] || [ "$2" = '^$' ] || grep -Pzoq "(?m)$2" "$3" || { echo "HOST $1: want $2" && return 1; }
	[ "$2" != '^$' ] || [ ! -s "$3" ] || { echo "HOST $1: want nothing said" && return 1; }
}

# Ends of what runs in the background, in the order they began, as far as they end by themselves: servers of a test, not daemons.
WAITING=()
await_servers()
{
	local item pid host pattern file rc=0
	for item in "${WAITING[@]}"; do
		IFS=$'\t' read -r pid host pattern file <<<"$item"
		wait "$pid" || { echo "HOST $host: the command in the background ended with $?" && rc=1; }
		sed "s/^/    $host | /" "$file"
		answers "$host" "$pattern" "$file" || rc=1
	done
	WAITING=()
	return "$rc"
}

# Of a job that failed in the middle: the next one needs the port.
drop_servers()
{
	local item
	for item in "${WAITING[@]}"; do
		kill "${item%%$'\t'*}" 2>/dev/null
		wait "${item%%$'\t'*}"
	done
	WAITING=()
}

# until_it_serves COMMAND FILE: a server listens or a daemon has its socket
until_it_serves()
{
	local turn
	for turn in {1..200}; do
		case $1 in
		ep-fabric\ run*) [ ! -S "$DEPLOY/$2/run/main.sock" ] || return 0 ;;
		*) ! grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 || return 0 ;;
		esac
		sleep 0.1
	done
	echo "HOST $2: does not serve after 20 s ($turn looks)"
	return 1
}

# one_command NUMBER HOST BG PATTERN COMMAND
one_command()
{
	local file=$RXE_OUT/deploy.$1.$2 rc=0
	echo "$2\$ $5"
	if [ "$3" = '&' ]; then
		case $5 in
		ep-fabric\ run*)
			start_on "$2" "$5" >"$file" 2>&1 &
			DEPLOY_DAEMONS+=($!)
			;;
		*)
			start_on "$2" "timeout -k 5 $JOB_LIMIT $5" >"$file" 2>&1 &
			WAITING+=("$!"$'\t'"$2"$'\t'"$4"$'\t'"$file")
			;;
		esac
		until_it_serves "$5" "$2" || { cat "$file" && return 1; }
		return 0
	fi
	run_on "$2" "$5" >"$file" 2>&1 || rc=$?
	sed "s/^/    $2 | /" "$file"
	[ "$rc" = 0 ] || { echo "exit status $rc" && return 1; }
	answers "$2" "$4" "$file" || return 1
	[ "$2" = both ] || [ ${#WAITING[@]} = 0 ] || [ "$2" != alpha ] || await_servers
}

# commands FROM TO: those of the page with these numbers
deploy_commands()
{
	local number host bg pattern command one ran=0
	drop_servers
	awk -v mark=guest -f "$HERE/../page_commands.awk" "$PAGE" >"$RXE_OUT/deploy.commands" || return 1
	while IFS=$'\t' read -r number host bg pattern command <&4; do
		if [ "$number" -lt "$1" ] || [ "$number" -gt "$2" ] || [ "$host" = no ]; then
			continue
		fi
		[ "$host" != both ] || host="alpha beta"
		for one in $host; do
			one_command "$number" "$one" "$bg" "$pattern" "$command" || return 1
		done
		ran=$((ran + 1))
	done 4<"$RXE_OUT/deploy.commands"
	echo "# result: $ran commands of docs/guides/two-hosts.md"
	[ "$ran" -ge 3 ]
}

deploy_daemons()
{
	local pid rc=0
	DEPLOY_DAEMONS=()
	deploy_commands 13 99 || rc=1
	for pid in "${DEPLOY_DAEMONS[@]}"; do
		kill "$pid" 2>/dev/null
		wait "$pid" || { echo "a daemon ended with $?" && rc=1; }
	done
	[ "$rc" = 0 ] || tail -n 20 "$RXE_OUT"/deploy.1*
	return "$rc"
}

# said HOST PATTERN COMMAND: it must fail and say so
said()
{
	local file=$RXE_OUT/deploy.error
	echo "$1\$ $3"
	! run_on "$1" "timeout -k 5 $JOB_LIMIT $3" >"$file" 2>&1 || { echo "it did not fail" && return 1; }
	sed "s/^/    $1 | /" "$file"
	grep -qE -- "$2" "$file" || { echo "want $2" && return 1; }
	# What the page promises to be said stands on the page.
	grep -qF -- "${4:-$2}" "$PAGE" || { echo "the page does not have ${4:-$2}" && return 1; }
}

# The commonest errors of the page, as far as they can be made here.
# shellcheck disable=SC2016 # the host's own shell expands them
deploy_errors()
{
	local rc=0
	drop_servers
	said alpha 'no rendezvous server answered at beta:18515.*EPF-208' 'ep-bench rawverbs beta -d $DEV --timeout-s 2' \
		'no rendezvous server answered at beta:18515' || rc=1
	said alpha 'no secret is set.*EPF-205' 'env -u EPF_SECRET_FILE ep-bench p2p 10.9.8.7 --timeout-s 2' 'no secret is set' || rc=1
	start_on beta "timeout 30 ep-bench p2p --server --nic verbs -d \$DEV --timeout-s 8" >"$RXE_OUT/deploy.server" 2>&1 &
	until_it_serves ep-bench beta || rc=1
	said alpha 'refused our proof.*EPF-209' 'env -u EPF_SECRET_FILE EPF_SECRET=not-the-right-secret ep-bench p2p beta' 'refused our proof' || rc=1
	wait $!
	start_on beta "timeout 30 ep-bench p2p --server --nic verbs -d nothing0 --timeout-s 20" >"$RXE_OUT/deploy.server" 2>&1 &
	until_it_serves ep-bench beta || rc=1
	# The server's process is a rank, too, and leaves before it closes: either arrives first.
	said alpha 'was closed by the process that hosts it.*EPF-219|has left, others wait for it.*EPF-216' 'ep-bench p2p beta --nic verbs -d $DEV --timeout-s 20' \
		'was closed by the process that hosts it' || rc=1
	wait $!
	grep 'devices fits nic-device and verbs-port.*EPF-432' "$RXE_OUT/deploy.server" || { cat "$RXE_OUT/deploy.server" && rc=1; }
	return "$rc"
}

group_deploy()
{
	deploy_hosts || { result fail deploy-commands "no second host" && return; }
	job deploy-commands 150 deploy_commands 1 12
	job deploy-daemons 120 deploy_daemons
	job deploy-errors 90 deploy_errors
	umount /etc/hosts
}
