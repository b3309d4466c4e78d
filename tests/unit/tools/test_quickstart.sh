#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What tools/quickstart says and refuses, and that the files for editors and containers name what it makes and knows. TAP.
#
#   test_quickstart.sh SOURCE-ROOT
# shellcheck disable=SC2317 # the cases are called by name, through check
set -uo pipefail

ROOT=$1
number=0
failed=0

# check NAME COMMAND...
check()
{
	local name=$1
	shift
	number=$((number + 1))
	if "$@"; then
		printf 'ok %d - %s\n' "$number" "$name"
	else
		printf 'not ok %d - %s\n' "$number" "$name"
		failed=1
	fi
}

# refused TEXT ARGUMENT...: exit status 1, with that text
refused()
{
	local text=$1 said rc
	shift
	said=$("$ROOT/tools/quickstart" "$@" 2>&1)
	rc=$?
	[ "$rc" = 1 ] && grep -q -- "$text" <<<"$said"
}

quick_stages()
{
	[ "$("$ROOT/tools/quickstart" test --quick --list | paste -sd' ')" = 'format layers build unit demo' ]
}

# The stages of --quick are stages of the whole test.
quick_is_part()
{
	[ -z "$(comm -13 <("$ROOT/tools/quickstart" test --list | sort) <("$ROOT/tools/quickstart" test --quick --list | sort))" ]
}

# The loops of --busy run, two per CPU, and end with their parent even when that is killed.
busy_loops_end()
{
	local parent out pids pid alive
	out=$(mktemp)
	bash -c "$(sed -n '/^busy_loops()/,/^}/p' "$ROOT/tools/quickstart")
		say() { :; }
		BUSY_LOOPS=()
		busy_loops
		echo \"\${BUSY_LOOPS[@]}\" >$out
		exec sleep 1000" &
	parent=$!
	until [ -s "$out" ]; do
		sleep 0.05
	done
	read -r -a pids <"$out"
	rm -f "$out"
	[ ${#pids[@]} = $((2 * $(nproc))) ] && kill -0 "${pids[@]}" || return 1
	kill -9 "$parent"
	wait "$parent" 2>/dev/null
	for _ in {1..600}; do
		alive=no
		for pid in "${pids[@]}"; do
			# A zombie of a loop that nobody has waited for yet is over, too.
			! grep -q '^[0-9]* (sh) [^Z]' "/proc/$pid/stat" 2>/dev/null || alive=yes
		done
		[ "$alive" = yes ] || return 0
		sleep 0.1
	done
	kill -9 "${pids[@]}"
	return 1
}

clangd_database()
{
	[ "$(sed -n 's/^ *CompilationDatabase: *//p' "$ROOT/.clangd")" = build ] && grep -q '^	RELEASE=build$' "$ROOT/tools/quickstart"
}

# Each option that the container file gives to quickstart is one of its help.
container_options()
{
	local options option help
	help=$("$ROOT/tools/quickstart" --help)
	options=$(grep -v '^#' "$ROOT/docs/examples/Containerfile" | grep -o -- '--[a-z][a-z-]*' | sort -u)
	[ -n "$options" ] || return 1
	for option in $options; do
		grep -q -- "^  $option\b" <<<"$help" || return 1
	done
}

echo 1..8
check "stages of --quick" quick_stages
check "--quick is part of the whole" quick_is_part
check "--quick takes no stage" refused 'stages of its own' test --quick unit --list
check "--quick has no long form" refused 'no long form' test --quick --long --list
check "a stage that is not there" refused 'no stage nothing; there are: format' test nothing --list
check "the loops of --busy end with a killed test" busy_loops_end
check "clangd finds the demo's build" clangd_database
check "options of the container file" container_options
exit "$failed"
