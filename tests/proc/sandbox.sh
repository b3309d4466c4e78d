#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs ep-bench as a user without rights: no capability, 8 MiB of locked memory, 64 MiB of /dev/shm, a read-only root (no /tmp, no home, no
# runtime directory), and at most 2 CPUs.
#
#   sandbox.sh EP_BENCH ARGUMENT...   the program, copied to a place that user can reach
#   sandbox.sh --run COMMAND...       any command, in the same cell
#
# Root makes the cell with a mount namespace and drops all rights (setpriv); an ordinary user needs bubblewrap and unprivileged user
# namespaces. The cell is checked before the command runs: a limit that does not hold is a failure. Exit status 77 with the reason if no cell
# can be made. Called by the demo stage of `tools/quickstart test`.
set -u
export LC_ALL=C

SHM_BYTES=$((64 * 1024 * 1024))
MEMLOCK_BYTES=$((8 * 1024 * 1024))
NOBODY=65534

die()
{
	printf 'sandbox.sh: %s\n' "$*" >&2
	exit 1
}

no_cell()
{
	printf 'no cell can be made here: %s\n' "$*"
	exit 77
}

# ---- inside the cell ----------------------------------------------------------------------------

holds()
{
	local what=$1
	shift
	"$@" || die "the cell is not tight: $what does not hold"
	printf '    holds: %s\n' "$what"
}

no_capability()
{
	! grep -qE '^Cap(Prm|Eff|Amb):[[:space:]]*0*[1-9a-f]' /proc/self/status
}

# Nothing can be written but /dev/shm.
read_only()
{
	local dir
	for dir in / /tmp /var/tmp /run /root /home "$PWD"; do
		if [ -d "$dir" ] && [ -w "$dir" ]; then
			echo "$dir is writable" >&2
			return 1
		fi
	done
}

shm_is_small()
{
	[ "$(df -B1 --output=size /dev/shm | tail -n 1)" -le "$SHM_BYTES" ] && [ -w /dev/shm ]
}

inside()
{
	cd / || exit 1
	echo "in the cell:"
	holds "an ordinary user" [ "$(id -u)" != 0 ]
	holds "no capability" no_capability
	holds "memlock of $((MEMLOCK_BYTES / 1048576)) MiB" [ "$(ulimit -H -l)" = $((MEMLOCK_BYTES / 1024)) ]
	holds "/dev/shm of $((SHM_BYTES / 1048576)) MiB" shm_is_small
	holds "a read-only root" read_only
	holds "at most 2 CPUs" [ "$(nproc)" -le 2 ]
	unset TMPDIR XDG_RUNTIME_DIR XDG_CACHE_HOME
	export HOME=/nonexistent
	exec "$@"
}

# ---- making the cell ----------------------------------------------------------------------------

# The first two CPUs this process may use, as a list for taskset.
two_cpus()
{
	local part parts first last cpus=()
	IFS=, read -ra parts < <(awk '/^Cpus_allowed_list:/ { print $2 }' /proc/self/status)
	for part in "${parts[@]}"; do
		first=${part%-*}
		last=${part#*-}
		while [ "$first" -le "$last" ] && [ ${#cpus[@]} -lt 2 ]; do
			cpus+=("$first")
			first=$((first + 1))
		done
	done
	(IFS=, && echo "${cpus[*]}")
}

limited()
{
	taskset -c "$(two_cpus)" prlimit --memlock="$MEMLOCK_BYTES:$MEMLOCK_BYTES" "$@"
}

# Second half of as_root, inside the new mount namespace.
close_mounts()
{
	local point
	mount -t tmpfs -o "size=$SHM_BYTES,mode=1777,nosuid,nodev" cell /dev/shm || no_cell "no tmpfs on /dev/shm"
	while read -r _ point _; do
		point=$(printf '%b' "$point")
		case $point in
		/dev/shm | /proc | /proc/* | /sys | /sys/* | /dev | /dev/*) continue ;;
		esac
		mount -o remount,bind,ro "$point" 2>/dev/null
	done </proc/self/mounts
	exec setpriv --reuid=$NOBODY --regid=$NOBODY --clear-groups --inh-caps=-all --ambient-caps=-all \
		--bounding-set=-all --no-new-privs "$@"
}

as_root()
{
	unshare --mount --ipc true 2>/dev/null || no_cell "root may not unshare a mount namespace (a container?)"
	limited unshare --mount --ipc --propagation private "$SELF" --close-mounts "$@"
}

as_user()
{
	command -v bwrap >/dev/null || no_cell "bubblewrap is not installed"
	bwrap --unshare-user --ro-bind / / true 2>/dev/null ||
		no_cell "unprivileged user namespaces are switched off, and this is not root"
	limited bwrap --unshare-user --unshare-ipc --die-with-parent --new-session --cap-drop ALL \
		--uid $NOBODY --gid $NOBODY --ro-bind / / --dev /dev --remount-ro /dev \
		--size "$SHM_BYTES" --perms 1777 --tmpfs /dev/shm --proc /proc "$@"
}

# Copies the program and this script to a directory that the cell's user can read.
place_programs()
{
	local library
	PLACE=$(mktemp -d "${TMPDIR:-/tmp}/epf-sandbox.XXXXXX") || die "no temporary directory to put the program in"
	trap 'rm -rf "$PLACE"' EXIT
	chmod 755 "$PLACE"
	cp "$(readlink -f "$0")" "$PLACE/sandbox.sh" || die "cannot copy myself to $PLACE"
	SELF=$PLACE/sandbox.sh
	[ -n "${1-}" ] || return 0
	[ -x "$1" ] || die "no program $1; build it first"
	cp "$1" "$PLACE/ep-bench" || die "cannot copy $1 to $PLACE"
	# ep-bench looks for ep-fabric next to itself.
	[ ! -x "$(dirname "$1")/../tools/ep-fabric" ] || cp "$(dirname "$1")/../tools/ep-fabric" "$PLACE/" ||
		die "cannot copy ep-fabric to $PLACE"
	# Libraries of the build directory.
	for library in $(ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'); do
		case $library in
		/lib/* | /lib64/* | /usr/*) ;;
		*) cp "$library" "$PLACE/" || die "cannot copy $library to $PLACE" ;;
		esac
	done
	export LD_LIBRARY_PATH=$PLACE
	chmod -R a+rX "$PLACE"
}

cell()
{
	if [ "$(id -u)" = 0 ]; then
		as_root "$SELF" --inside "$@"
	else
		as_user "$SELF" --inside "$@"
	fi
}

SELF=$(readlink -f "$0")
case ${1-} in
--inside) shift && inside "$@" ;;
--close-mounts) shift && close_mounts "$@" ;;
--run) shift && place_programs "" && cell "$@" ;;
"" | -*) die "usage: sandbox.sh EP_BENCH ARGUMENT... | sandbox.sh --run COMMAND..." ;;
*) place_programs "$1" && shift && cell "$PLACE/ep-bench" "$@" ;;
esac
