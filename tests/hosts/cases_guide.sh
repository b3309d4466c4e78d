# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Case of jobs.sh: the commands of docs/guides/hosts.md, as they stand there.

# A server for ssh(1) on every host, and a key that is welcome on all. Packages and programs are here already: commands 1 and 2 of the page.
ssh_hosts()
{
	local host
	for host in dropbear ssh; do
		command -v "$host" >/dev/null || { echo "no $host here (packages dropbear-bin, openssh-client)" && return 77; }
	done
	ssh-keygen -q -t ed25519 -N '' -f "$BED/key" || return 1
	for host in "${BED_HOSTS[@]}"; do
		dropbearkey -t ed25519 -f "$BED/$host.hostkey" >/dev/null 2>&1 || return 1
		# Where a login finds the programs: this server's PATH has not even /usr/local/bin.
		# shellcheck disable=SC2016
		bed_on "$host" bash -c 'umask 077; mkdir -p .ssh && cp "$1/key" .ssh/id_ed25519 && cp "$1/key.pub" .ssh/authorized_keys &&
			printf "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n" >.ssh/config && printf "export PATH=%q\n" "$PATH" >.bashrc' \
			bash "$BED" || return 1
		bed_on "$host" dropbear -F -E -s -p 22 -P /run/dropbear.pid -r "$BED/$host.hostkey" >"$OUT/dropbear.$host" 2>&1 </dev/null &
		await_port "$host" || return 1
	done
}

await_port()
{
	local turn
	for turn in {1..250}; do
		! bed_on "$1" grep -q ':0016 .* 0A ' /proc/net/tcp || return 0
		sleep 0.05
	done
	echo "$1: nobody listens on port 22 after $turn looks"
	return 1
}

# page_run NUMBER HOST BG PATTERN COMMAND
page_run()
{
	local file=$OUT/page.$1.$2 rc=0
	echo "$2\$ $5"
	if [ "$3" = '&' ]; then
		bed_on "$2" bash -c "exec env $5" >"$file" 2>&1 &
		BEHIND+=("$!"$'\t'"$2"$'\t'"$5")
		[ "$4" = . ] || await "$file" "$4" $! || return 1
		return 0
	fi
	bed_on "$2" timeout -k 5 "$LIMIT" bash -c "$5" >"$file" 2>&1 || rc=$?
	sed "s/^/    $2 | /" "$file"
	[ "$rc" = 0 ] || { echo "$2: exit status $rc of: $5" && return 1; }
	if [ "$4" = '^$' ]; then
		[ ! -s "$file" ] || { echo "$2: wants nothing said by: $5" && return 1; }
	else
		grep -Pzoq "(?m)$4" "$file" || { echo "$2: wants '$4' of: $5" && return 1; }
	fi
}

# The commands of docs/guides/hosts.md, as they stand there.
guide()
{
	local number host bg pattern command one pid ran=0 rc=0
	ssh_hosts || return
	BEHIND=()
	awk -v mark=hosts -f "$BED_TREE/tests/page_commands.awk" "$BED_TREE/docs/guides/hosts.md" >"$OUT/commands" || return 1
	while IFS=$'\t' read -r number host bg pattern command <&4; do
		[ "$host" != no ] || continue
		[ "$host" != both ] || host="alpha beta"
		for one in $host; do
			page_run "$number" "$one" "$bg" "$pattern" "$command" || return 1
		done
		ran=$((ran + 1))
	done 4<"$OUT/commands"
	for one in "${BEHIND[@]}"; do
		IFS=$'\t' read -r pid host command <<<"$one"
		[[ $command != "ep-fabric run"* ]] || bed_on "$host" pkill -TERM -f '^ep-fabric run'
		wait "$pid" || { echo "$host: exit status $? of: $command" && rc=1; }
	done
	grep -q '# wrong: 0' "$OUT"/page.9.alpha || { cat "$OUT"/page.9.* && rc=1; }
	echo "# $ran commands of docs/guides/hosts.md"
	[ "$ran" -ge 6 ] && return "$rc"
}
