#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Two guests with a cable between them, of which the second is stopped and goes on when the first one asks for it:
#
#   two.sh DIR BUILD [TIMEOUT_S]
#
# DIR as --dir of guest.sh, BUILD as of jobs.sh, whose group `two` runs in both (rxe_two). Results of jobs are in DIR/two1/results and
# DIR/two2/results. Stopped through QEMU's monitor: to the guest no time passes meanwhile, to everybody else it is silent. Exit status 0, 77 with a
# reason where no guest can run, else 1. It must leave no guest behind.
# shellcheck disable=SC2317 # finish is called by a trap
set -uo pipefail
export LC_ALL=C

HERE=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
DIR=${1:?two.sh DIR BUILD}
BUILD=${2:?two.sh DIR BUILD}
TIMEOUT=${3:-300}

"$HERE/guest.sh" --dir "$DIR" --prepare || exit
DIR=$(cd "$DIR" && pwd)
# Addresses of loopback that nobody else has: 127.x.y, by our process number.
NET=127.$((1 + $$ / 250 % 250)).$((1 + $$ % 250))
GUEST=()

# start END OPTION...
start()
{
	local end=$1
	shift
	"$HERE/guest.sh" --dir "$DIR" --timeout "$TIMEOUT" --memory 512 --run "two$end" --cable "$end,$NET" "$@" \
		env "RXE_END=$end" "EPF_TEST_LONG=${EPF_TEST_LONG:-0}" "LIMIT_TIMES=${LIMIT_TIMES:-1}" "$HERE/jobs.sh" two "$BUILD" >"$DIR/two$end.log" 2>&1 &
	GUEST[end]=$!
}

finish()
{
	kill "${GUEST[@]}" 2>/dev/null
	wait
}

# monitor COMMAND WORD: until the monitor has said so
monitor()
{
	local turn
	echo "$1" >"$DIR/two2/monitor.in"
	for turn in {1..100}; do
		echo "info status" >"$DIR/two2/monitor.in"
		if timeout 2 grep -q -m 1 "VM status: $2" <"$DIR/two2/monitor.out"; then
			echo "two.sh: $1: guest 2 is $2 (answer $turn)" >>"$DIR/two1.log"
			return 0
		fi
	done
	echo "two.sh: $1: guest 2 is not $2" >&2
	return 1
}

# Does what guest 1 asks for, until it ends.
serve()
{
	local want done=
	while kill -0 "${GUEST[1]}" 2>/dev/null; do
		sleep 0.02
		want=$(cat "$DIR/two1/want" 2>/dev/null)
		[ "$want" != "$done" ] || continue
		case $want in
		stop) monitor stop paused || return 1 ;;
		cont) monitor cont running || return 1 ;;
		*) continue ;;
		esac
		done=$want
		echo "$done" >"$DIR/two1/did.new" && mv "$DIR/two1/did.new" "$DIR/two1/did"
	done
}

trap finish EXIT
trap 'exit 143' TERM INT HUP
rm -rf "$DIR/two1" "$DIR/two2"
start 1
start 2 --monitor
serve || exit 1
rc=0
wait "${GUEST[1]}" || rc=1
wait "${GUEST[2]}" || rc=1
GUEST=()
cat "$DIR/two1.log" "$DIR/two2.log"
exit "$rc"
