# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# The stages of `tools/quickstart test`, in the order they run: one function per stage, callable by name. tests/expected.txt alone lists what must
# exist. Sourced by tools/quickstart after tests/lib.sh. A stage reports through check, pass, fail, skip or tests/results.py, and must not exit. The
# stage rxe is in tests/stages_rxe.sh.

# shellcheck disable=SC2034
STAGES=(format static layers build headers aarch64 hot docs unit prop proc p2p rxe hosts hooks asan tsan fuzz demo frameworks nixl package bench)
[ "$LONG" = no ] || STAGES+=(mutate)
[ "$QUICK" = no ] || STAGES=(format layers build unit demo)

JOBS=$(nproc)
# Tests at a time: together they use half of a CPU each, as most of them wait for a fault, a deadline or another process.
TEST_JOBS=$((2 * JOBS))
[ "$BUSY$LONG" = nono ] || TEST_JOBS=$JOBS
# Limits against hanging, on a busy machine.
export LIMIT_TIMES=1
[ "$BUSY" = no ] || LIMIT_TIMES=4
# Seeds under a sanitizer, where every step is several times slower; printed.
SAN_SEEDS=100
SAN_PROC_SEEDS=4
# Factor for the number of inputs in expected.txt: a number, not seconds, so that a busy machine covers as much.
FUZZ_TIMES=1
if [ "$LONG" = yes ]; then
	export EPF_TEST_LONG=1 EPF_SEEDS=${EPF_SEEDS:-100000} EPF_PROC_SEEDS=${EPF_PROC_SEEDS:-1000}
	SAN_SEEDS=10000
	SAN_PROC_SEEDS=40
	FUZZ_TIMES=100
fi
FUZZ_COVERAGE=85
HOOKS_OPTIONS=(-Dwerror=true -Doptimization=1 -Ddebug=false -Dcuda=disabled -Dtest_hooks=true)
# Of the build under AddressSanitizer, which has the test hooks, too. -Og compiles in half the time of -O1, and the tests take hardly longer. For both
# sanitizers -g1 (functions and lines) is enough for reports, and compiles faster than -g.
ASAN_BUILD=(-Dcuda=disabled -Dtest_hooks=true "-Db_sanitize=address,undefined" -Db_lundef=false -Doptimization=g -Dc_args=-g1)

# shellcheck source=tests/stages_rxe.sh
. "$ROOT/tests/stages_rxe.sh"

# ---- helpers ------------------------------------------------------------------------------------

# tree_files PATTERN...: files of the tree, tracked or untracked, no build output
tree_files()
{
	git -C "$ROOT" -c safe.directory='*' ls-files -co --exclude-standard -- "$@" | while IFS= read -r f; do
		[ ! -f "$ROOT/$f" ] || printf '%s\n' "$f"
	done
}

# expected KIND: the rest of each line of that kind in tests/expected.txt
expected()
{
	awk -v kind="$1" '$1 == kind { $1 = ""; sub(/^ /, ""); print }' "$ROOT/tests/expected.txt"
}

# prepare NAME CC OPTION...: configures a build; counted only if it fails
prepare()
{
	configure "$@" >"$LOGS/$1-setup.log" 2>&1 && return 0
	tail -n 20 "$LOGS/$1-setup.log" | sed 's/^/        | /'
	fail "configure $1" "see $LOGS/$1-setup.log"
	return 1
}

prepare_test_build()
{
	prepare build-test gcc -Dwerror=true -Dc_args=-g1
}

# compile BUILD TARGET...: one check
compile()
{
	local build=$1
	shift
	check "compile $build" ninja -C "$BUILD_ROOT/$build" -j "$JOBS" "$@"
}

# compile_quietly BUILD TARGET...: counted only if it fails; the build stage counts whole builds
compile_quietly()
{
	# shellcheck disable=SC2153
	local start log=$LOGS/$STAGE-$1-compile.log
	start=$(now_ms)
	if ! ninja -C "$BUILD_ROOT/$1" -j "$JOBS" "${@:2}" >"$log" 2>&1; then
		grep -v '^\[[0-9]*/[0-9]*\] ' "$log" | tail -n 40 | sed 's/^/        | /'
		fail "compile $1" "after $(seconds "$start"); whole output in $log"
		return 1
	fi
	printf '    compiled in %s: %s\n' "$1" "$(seconds "$start")"
}

# run_suites BUILD MULTIPLIER SUITE...: builds the targets of the suites' tests, runs them, counts each.
# Skipped, by name: tests labelled nosan under a sanitizer (they forbid its calls, or gain nothing from it), tests labelled slow with --quick.
run_suites()
{
	local build=$1 multiplier=$2 suite name args=() targets log start label="" left_out="" ran=$RESULTS.ran again=$RESULTS.again
	shift 2
	for suite in "$@"; do
		args+=(--suite "$suite")
	done
	[[ ! $build =~ ^build-[at]san$ ]] || label=nosan
	[ "$QUICK" = no ] || label=slow
	if [ -n "$label" ]; then
		left_out=$(python3 "$ROOT/tests/results.py" labelled "$BUILD_ROOT/$build" "$label")
		args+=(--no-suite "$label")
	fi
	targets=$(python3 "$ROOT/tests/results.py" targets "$BUILD_ROOT/$build" "$@" ${label:+"-$label"})
	if [ -n "$targets" ]; then
		# shellcheck disable=SC2086
		compile_quietly "$build" $targets || return 1
	fi
	start=$(now_ms)
	# shellcheck disable=SC2153
	log=$BUILD_ROOT/$build/meson-logs/quickstart-$STAGE.json
	rm -f "$log" "$ran" "$again"
	multiplier=$((multiplier * LIMIT_TIMES))
	[ "$LONG" = no ] || multiplier=0
	(cd "$BUILD_ROOT/$build" && meson test --no-rebuild --logbase "quickstart-$STAGE" -t "$multiplier" \
		--num-processes "$TEST_JOBS" "${args[@]}") >"$LOGS/$STAGE-meson.log" 2>&1
	if [ -s "$log" ]; then
		[ "$LONG" != no ] || touch "$again"
		# shellcheck disable=SC2046
		python3 "$ROOT/tests/results.py" count "$log" $(find "$again" 2>/dev/null) || fail "$STAGE" "tests/results.py could not read $log"
		[ ! -s "$again" ] || run_again "$build" "$multiplier" "$again"
	fi
	printf '    tests ran for %s\n' "$(seconds "$start")"
	[ -s "$ran" ] || absent "$STAGE" "no test in suite $*"
	while read -r suite name; do
		if [[ " $* " != *" $suite "* ]] || grep -qxF "$name" "$ran" 2>/dev/null; then
			continue
		elif grep -qxF "$name" <<<"$left_out"; then
			skip "$name" "labelled $label"
		else
			absent "$name" "no such test in suite $suite"
		fi
	done < <(expected test)
}

# run_again BUILD MULTIPLIER LIST: runs failed tests again that results.py selects, one at a time and with the same seed. A shared machine is at times
# too slow for a test on its clock; a second failure counts. $RESULTS.ran of the first run is kept.
run_again()
{
	local log=$BUILD_ROOT/$1/meson-logs/quickstart-$STAGE-again.json name seed first=$RESULTS.first
	cp "$RESULTS.ran" "$first"
	while IFS=$'\t' read -r name seed; do
		rm -f "$log" "$RESULTS.ran"
		# shellcheck disable=SC2086
		(cd "$BUILD_ROOT/$1" && env $seed meson test --no-rebuild --logbase "quickstart-$STAGE-again" -t "$2" \
			--num-processes 1 "$name") >"$LOGS/$STAGE-meson-again.log" 2>&1 </dev/null
		[ ! -s "$log" ] || python3 "$ROOT/tests/results.py" again "$log" "$seed"
		if ! grep -qxF "$name" "$RESULTS.ran" 2>/dev/null; then
			fail "$name" "it did not run again; see $LOGS/$STAGE-meson-again.log"
		fi
	done <"$3"
	mv "$first" "$RESULTS.ran"
}

# ---- stages -------------------------------------------------------------------------------------

stage_format()
{
	local files
	if ! git -C "$ROOT" -c safe.directory='*' rev-parse >/dev/null 2>&1; then
		fail "list of files" "no git checkout here: clone the repository to run this stage"
		return
	fi
	mapfile -t files < <(tree_files '*.c' '*.h' '*.cu' '*.cuh')
	check "clang-format, ${#files[@]} files" in_root clang-format-14 --dry-run --Werror "${files[@]}"
	mapfile -t files < <(tree_files '*' ':!tests/fuzz/seeds' ':!LICENSE')
	check "codespell" in_root codespell -q 3 -L inout,fo,te,ans,nd,ue,hda,iput "${files[@]}"
	check "SPDX line in every source" spdx
	mapfile -t files < <(tree_files '*.sh' tools/quickstart .ci/run)
	check "shellcheck, ${#files[@]} files" in_root shellcheck -x "${files[@]}"
}

in_root()
{
	(cd "$ROOT" && "$@")
}

spdx()
{
	! tree_files '*.c' '*.h' '*.cu' '*.cuh' '*.inc' '*.py' '*.sh' '*.map' '*meson.build' meson_options.txt tools/quickstart .ci/run |
		(cd "$ROOT" && xargs awk '
			function complain() { if (file && !has) print file ": no SPDX line in its first three" }
			FNR == 1 { complain(); file = FILENAME; has = 0 }
			/SPDX-License-Identifier: Apache-2.0/ { has = 1 }
			FNR == 3 { nextfile }
			END { complain() }') | grep .
}

# Suppressed: uninitvar and arrayIndexThenCheck (they do not follow a condition in a variable, and both compilers check this, too),
# invalidPointerCast (all supported machines have the same floats), invalidFunctionArg (mmap(2) takes the descriptor -1 with MAP_ANONYMOUS),
# readdirCalled (readdir(3) is safe on a private stream), getgrnamCalled (called before there are other threads).
# What is built on this machine; in the long form every combination of macros, up to cppcheck's limit of 12 a file, at five times the price.
stage_static()
{
	local macros=("-D__$(uname -m)__" -D__linux__ -D_GNU_SOURCE -DEPF_WITH_SDT -DEPF_WITH_VERBS -DEPF_WITH_OFI -DEPF_WITH_MICROHTTPD -DEPF_WITH_ZSTD)
	[ "$LONG" = no ] || macros=()
	check "cppcheck" in_root cppcheck "${macros[@]}" --quiet -j "$JOBS" --std=c11 --language=c --library=posix \
		--enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
		--suppress=missingInclude --suppress=missingIncludeSystem --suppress=unknownMacro \
		--suppress=unmatchedSuppression --suppress=uninitvar --suppress=arrayIndexThenCheck \
		--suppress=invalidPointerCast --suppress=invalidFunctionArg --suppress=readdirCalled --suppress=getgrnamCalled -I . -i tests/fuzz -i tools/nixl queues fabric bootstrap kernels tools bench
	check "cppcheck, C++" in_root cppcheck --quiet --std=c++17 --language=c++ --enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
		--suppress=missingInclude --suppress=missingIncludeSystem --suppress=unmatchedSuppression -I . tools/nixl
}

stage_layers()
{
	check "include layers" python3 "$ROOT/tests/check_layers.py" "$ROOT"
}

# The targets of --quick: its unit tests, and the two programs of the demo.
quick_build()
{
	local targets
	prepare_test_build || return
	targets=$(python3 "$ROOT/tests/results.py" targets "$BUILD_ROOT/build-test" unit -slow)
	# shellcheck disable=SC2086
	compile build-test $targets bench/ep-bench tools/ep-fabric
}

stage_build()
{
	local target files
	if [ "$QUICK" = yes ]; then
		quick_build
		return
	fi
	if prepare_test_build && compile build-test; then
		while read -r target; do
			if [ -e "$BUILD_ROOT/build-test/$target" ]; then
				pass "$target is built"
			else
				absent "$target" "no target makes it"
			fi
		done < <(expected target)
		mapfile -t files < <(tree_files '*.c' ':!tests/fuzz' ':!tests/prop/test_hooks.c' \
			':!fabric/nic/verbs/absent.c' ':!fabric/nic/efa/absent.c' ':!fabric/nic/ofi/absent.c' \
			':!bench/verbs/absent.c' ':!tests/gpu/crash.c' ':!tests/headers/nccl_layout.c' ':!bench/ring/gpu_image.c' ':!kernels/ll/ll_*_image.c' ':!kernels/ht/ht_*_image.c' ':!kernels/pack/pack_*_image.c') # of builds without verbs, libfabric, NCCL, nvcc, clang-19
		[ ${#files[@]} -gt 0 ] || fail "list of files" "no git checkout here: clone the repository"
		check "every C file has a target" python3 "$ROOT/tests/results.py" sources "$BUILD_ROOT/build-test" \
			"$ROOT" "${files[@]}"
	fi
	# For clang's warnings, which need no optimisation; the tests run gcc's code. Without CUDA here and under the sanitizers: nvcc would compile
	# the same device code again.
	prepare build-clang clang-14 -Dwerror=true -Doptimization=0 -Ddebug=false -Dcuda=disabled && compile build-clang
	# Everything optional off: as on a machine without CUDA, HIP, verbs and cmocka.
	prepare build-off gcc -Dwerror=true -Doptimization=0 -Ddebug=false -Dtests=disabled -Dcuda=disabled -Dhip=disabled -Dverbs=disabled -Dofi=disabled -Dusdt=disabled -Dzstd=disabled &&
		compile build-off && check "install and use by pkg-config" install_and_use
}

# As a packager and a user: installs, then compiles with pkg-config's flags, in C and C++, and runs.
# A subshell, so that its exports do not reach later stages.
install_and_use()
(
	local dest=$BUILD_ROOT/build-off/quickstart-dest pc
	rm -rf "$dest"
	DESTDIR=$dest meson install -C "$BUILD_ROOT/build-off" --no-rebuild || return 1
	pc=$(find "$dest" -name '*.pc' -printf '%h\n' | head -n 1)
	[ -n "$pc" ] || { echo "no pkg-config file was installed" && return 1; }
	export PKG_CONFIG_SYSROOT_DIR=$dest PKG_CONFIG_PATH=$pc
	printf '#include <epf.h>\nint main(void) { return epf_last_error() == 0; }\n' >"$dest/use.c"
	# shellcheck disable=SC2046
	gcc -Wall -Werror "$dest/use.c" $(pkg-config --cflags --libs epf) -o "$dest/use" || return 1
	cp "$dest/use.c" "$dest/use.cc"
	# shellcheck disable=SC2046
	g++ -Wall -Werror "$dest/use.cc" $(pkg-config --cflags --libs epf) -o "$dest/use-cc" || return 1
	LD_LIBRARY_PATH=$(dirname "$(find "$dest" -name 'libepf.so' | head -n 1)")
	export LD_LIBRARY_PATH
	"$dest/use" && "$dest/use-cc" && [ -n "$(find "$dest" -name 'libepf.a')" ]
)

# Debian's aarch64 libraries, unpacked and never installed.
aarch64_root()
{
	local sysroot=$1
	[ ! -e "$sysroot/complete" ] || return 0
	[ "$(uname -m)" = x86_64 ] || { echo "this machine is no x86-64: build and unit show what this stage would" && return 77; }
	rm -rf "$sysroot"
	mmdebstrap --variant=extract --architectures=arm64 --quiet --dpkgopt=force-unsafe-io \
		--include=libc6-dev,libsodium-dev,libjansson-dev,libinih-dev,libcmocka-dev,libnuma-dev,libdpdk-dev,libibverbs-dev,libfabric-dev,libseccomp-dev,libncurses-dev,libmicrohttpd-dev \
		bookworm "$sysroot" || { echo "Debian's archive cannot be reached" && return 77; }
	touch "$sysroot/complete"
}

# Cross-built, with -O1 except in the long form, as that compiles faster. -O1 sees too little for -Wmaybe-uninitialized: that is for gcc's build. User-mode
# emulation runs the unit tests that need no other program and no clock.
stage_aarch64()
{
	local sysroot=$BUILD_ROOT/build-aarch64-root name programs=()
	local cross=$sysroot/cross.ini optimization=1
	[ "$LONG" = no ] || optimization=2
	check "root of aarch64" aarch64_root "$sysroot" || return 0
	cat >"$cross" <<-TEXT
		[binaries]
		c = 'aarch64-linux-gnu-gcc'
		ar = 'aarch64-linux-gnu-ar'
		strip = 'aarch64-linux-gnu-strip'
		pkgconfig = 'pkg-config'
		exe_wrapper = ['qemu-aarch64', '-L', '$sysroot']
		[properties]
		sys_root = '$sysroot'
		pkg_config_libdir = ['$sysroot/usr/lib/aarch64-linux-gnu/pkgconfig', '$sysroot/usr/share/pkgconfig']
		[built-in options]
		c_args = ['--sysroot=$sysroot', '-Wno-maybe-uninitialized']
		c_link_args = ['--sysroot=$sysroot']
		[host_machine]
		system = 'linux'
		cpu_family = 'aarch64'
		cpu = 'aarch64'
		endian = 'little'
	TEXT
	prepare build-aarch64 gcc --cross-file "$cross" -Dwerror=true -Doptimization="$optimization" -Ddebug=false -Dcuda=disabled || return
	while read -r name; do
		programs+=("tests/unit/test_$name")
	done < <(expected aarch64)
	while read -r name; do
		programs+=("$name")
	done < <(ninja -C "$BUILD_ROOT/build-aarch64" -t targets all | sed -n 's/: c_LINKER.*//p' | grep -v '^tests/')
	compile build-aarch64 "${programs[@]}" || return
	while read -r name; do
		check_beside "aarch64 $name" timeout $((120 * LIMIT_TIMES)) qemu-aarch64 -L "$sysroot" "$BUILD_ROOT/build-aarch64/tests/unit/test_$name"
	done < <(expected aarch64)
	wait
}

stage_headers()
{
	prepare_test_build && run_suites build-test 3 headers
}

stage_hot()
{
	local objects
	prepare_test_build || return
	objects=$(python3 "$ROOT/tests/check_hot.py" --list "$BUILD_ROOT/build-test" "$ROOT")
	# shellcheck disable=SC2046
	[ -z "$objects" ] || compile_quietly build-test $(cut -d ' ' -f 1 <<<"$objects") || return
	run_suites build-test 3 hot
	for object in $(expected hot); do
		grep -q " $object$" <<<"$objects" || absent "$object" "no hot object of it"
	done
}

stage_docs()
{
	prepare_test_build && run_suites build-test 3 docs
}

stage_unit()
{
	prepare_test_build && run_suites build-test 3 unit
}

stage_prop()
{
	prepare_test_build && run_suites build-test 3 prop
}

stage_p2p()
{
	prepare_test_build && run_suites build-test 3 p2p
}

stage_proc()
{
	check "promtool of the package prometheus" "$ROOT/tests/promtool.sh" "$BUILD_ROOT/build-promtool" &&
		PROMTOOL=$(tail -n 1 "$LOGS/proc-promtool-of-the-package-prometheus.log") && export PROMTOOL
	prepare_test_build && run_suites build-test 3 proc
}

# Begins the packages' build with the objects of the release program, whose flags are the same (ninja compiles again what differs). From nothing: the long form.
package_build()
{
	local dir=$BUILD_ROOT/build-package
	[ ! -f "$dir/build.ninja" ] || return 0
	build_release || return
	rm -rf "$dir"
	cp -a "$BUILD_ROOT/$RELEASE" "$dir" && meson setup --reconfigure "$dir" "$ROOT" -Dcuda=auto
}

# Builds the Debian packages and installs them on a clean root, then the wheels, in empty environments; tests/expected.txt lists the cases.
stage_package()
{
	local log=$LOGS/package.log name detail installs rc
	package_build >"$LOGS/package-begin.log" 2>&1 || { fail "begin of the packages' build" "see $LOGS/package-begin.log" && return; }
	check "packages are made" "$ROOT/tools/package/build" --build-dir "$BUILD_ROOT/build-package" "$BUILD_ROOT/build-package-out" || return 0
	"$ROOT/tests/package/install.sh" "$BUILD_ROOT/build-package-out" "$BUILD_ROOT/build-package-root" >"$log" 2>&1 &
	installs=$!
	# The same build folder again: only the links are made anew.
	check "wheels are made" "$ROOT/tools/package/wheel" --build-dir "$BUILD_ROOT/build-package" "$BUILD_ROOT/build-package-wheels" &&
		"$ROOT/tests/package/wheel.sh" "$BUILD_ROOT/build-package-wheels" "$BUILD_ROOT/build-package-environments" >"$log.wheels" 2>&1
	wait "$installs"
	rc=$?
	"$ROOT/tests/package/contents.sh" "$BUILD_ROOT/build-package-out" >>"$log" 2>&1
	cat "$log.wheels" >>"$log"
	[ -z "${EPF_TEST_LONG:-}" ] || check "packages are reproducible" "$ROOT/tests/package/reproducible.sh" "$BUILD_ROOT/build-package-twice"
	while read -r name; do
		detail=$(sed -n "s/^FAIL $name: //p" "$log")
		if grep -qx "ok $name" "$log"; then
			pass "package $name"
		elif grep -qx "skip $name" "$log"; then
			skip "package $name" "systemd-analyze is not here"
		elif [ "$rc" = 77 ] && [ "${name#wheel}" = "$name" ] && [ -z "$detail" ]; then
			skip "package $name" "$(sed -n 1p "$log")"
		else
			fail "package $name" "${detail:-no result; see $log}"
		fi
	done < <(expected package)
}

# Jobs on hosts made of namespaces; tests/expected.txt lists the cases. Never run again: no case is judged by its time.
stage_hosts()
{
	local log=$LOGS/hosts.log name rc
	check "compile the release program" build_release || return 0
	"$ROOT/tests/hosts/jobs.sh" "$BUILD_ROOT/$RELEASE" "$LOGS" >"$log" 2>&1
	rc=$?
	sed -n 's/^# /        | /p' "$log"
	while read -r name; do
		if grep -qx "ok $name" "$log"; then
			pass "hosts $name"
		elif grep -q "^skip $name: " "$log"; then
			skip "hosts $name" "$(sed -n "s/^skip $name: //p" "$log")"
		elif [ "$rc" = 77 ]; then
			skip "hosts $name" "$(tail -n 1 "$log")"
		else
			sed -n "/^    | /{H;d}; /^FAIL $name: /{x;p}; s/.*//; h" "$log" | sed '/^$/d'
			fail "hosts $name" "$(grep "^FAIL $name: " "$log" | sed "s/^FAIL $name: //" | grep . || echo "no result; see $log")"
		fi
	done < <(expected hosts)
}

# keep_bytecode COMMAND...: runs it so that Python keeps the bytecode of fetched packages, which ship without it. A rank that has to compile PyTorch and
# Megatron-core needs 11 s of CPU time before it begins, one with bytecode 5 s.
keep_bytecode()
{
	mkdir -p "$BUILD_ROOT/build-bytecode" && PYTHONPYCACHEPREFIX=$BUILD_ROOT/build-bytecode PYTHONDONTWRITEBYTECODE='' "$@"
}

# What the stages frameworks and nixl run, as NAME FOLDER.
FETCHED="cpu build-frameworks
nixl-1.3 build-nixl/1.3
nixl-1.4 build-nixl/1.4
nixl-1.5 build-nixl/1.5"

# Fetches the packages of the stages $@ in the background, while others compile. The stages call fetch.py again, which then finds everything there, or
# says what is missing.
prefetch()
{
	local name folder
	[[ " $* " == *" frameworks "* && " $* " == *" nixl "* ]] || return 0
	while read -r name folder; do
		/usr/bin/python3 "$ROOT/tools/frameworks/fetch.py" "$name" "$BUILD_ROOT/$folder"
	done <<<"$FETCHED" >"$LOGS/prefetch.log" 2>&1 &
	PREFETCH=$!
}

# fetched CHECK NAME: one check
fetched()
{
	[ -z "$PREFETCH" ] || wait "$PREFETCH"
	PREFETCH=
	check "$1" /usr/bin/python3 "$ROOT/tools/frameworks/fetch.py" "$2" "$BUILD_ROOT/$(sed -n "s/^$2 //p" <<<"$FETCHED")"
}

# Megatron-core and transformers on CPU tensors, with packages from PyPI that are fetched once into the build directory; without them all is skipped.
stage_frameworks()
{
	export FRAMEWORKS=$BUILD_ROOT/build-frameworks
	fetched "packages of frameworks" cpu
	case $? in
	0) ;;
	77) unset FRAMEWORKS ;;
	*) return ;;
	esac
	prepare_test_build && keep_bytecode run_suites build-test 3 frameworks
}

# Our back end in NIXL's agents: three releases from PyPI, fetched once into the build directory; without them all is skipped.
stage_nixl()
{
	local version rc
	export NIXL=$BUILD_ROOT/build-nixl
	for version in 1.3 1.4 1.5; do
		fetched "NIXL $version" "nixl-$version"
		rc=$?
		[ "$rc" = 0 ] || [ "$rc" = 77 ] || return
	done
	prepare_test_build && keep_bytecode run_suites build-test 3 nixl
}

# Each hook breaks the engine in one way; the suite passes only if each is caught within 20 seeds. The build is that of the stage asan.
stage_hooks()
{
	prepare build-asan gcc "${ASAN_BUILD[@]}" && run_suites build-asan 6 hooks
	if [ -f "$BUILD_ROOT/$RELEASE/build.ninja" ] || build_release >"$LOGS/hooks-release.log" 2>&1; then
		check "a release program holds no hook" no_hooks_in_release
	fi
}

no_hooks_in_release()
{
	build_release >/dev/null || return 1
	! find "$BUILD_ROOT/$RELEASE" -name '*.o' -exec nm -A {} + | grep -i 'epf_\w*hook'
}

stage_asan()
{
	prepare build-asan gcc "${ASAN_BUILD[@]}" || return
	echo "    under AddressSanitizer and UBSan: EPF_SEEDS=$SAN_SEEDS EPF_PROC_SEEDS=$SAN_PROC_SEEDS"
	EPF_SEEDS=$SAN_SEEDS EPF_PROC_SEEDS=$SAN_PROC_SEEDS run_suites build-asan 6 unit prop proc p2p
}

stage_tsan()
{
	# -Wno-tsan: gcc warns that fences are not modelled; only the wakeup has two.
	prepare build-tsan gcc -Dcuda=disabled -Db_sanitize=thread -Db_lundef=false -Doptimization=g '-Dc_args=-Wno-tsan -g1' || return
	echo "    under ThreadSanitizer: EPF_SEEDS=$SAN_SEEDS EPF_PROC_SEEDS=$SAN_PROC_SEEDS"
	EPF_SEEDS=$SAN_SEEDS EPF_PROC_SEEDS=$SAN_PROC_SEEDS run_suites build-tsan 10 threads
}

stage_fuzz()
{
	local name runs files targets=() instrument='-fsanitize=fuzzer-no-link,address,undefined'
	instrument+=' -fno-sanitize-recover=undefined -fprofile-instr-generate -fcoverage-mapping'
	# meson runs what it compiles to try the compiler, here, where a profile would be left behind.
	local -x LLVM_PROFILE_FILE=$LOGS/fuzz-setup.profraw
	prepare build-fuzz clang-14 -Dfuzz=true -Db_lundef=false -Doptimization=1 \
		"-Dc_args=$instrument -g1" "-Dc_link_args=-fsanitize=address,undefined -fprofile-instr-generate" || return
	while read -r name runs files; do
		if ninja -C "$BUILD_ROOT/build-fuzz" -t query "tests/fuzz/$name" >/dev/null 2>&1; then
			targets+=("tests/fuzz/$name")
		else
			absent "fuzzer $name" "no target tests/fuzz/$name, which covers $files"
		fi
	done < <(expected fuzz)
	[ ${#targets[@]} -gt 0 ] || return
	compile_quietly build-fuzz "${targets[@]}" || return
	while read -r name runs files; do
		[[ " ${targets[*]} " == *" tests/fuzz/$name "* ]] || continue
		# shellcheck disable=SC2086
		check_beside "fuzzer $name, $((runs * FUZZ_TIMES)) inputs, $FUZZ_COVERAGE % of $files" fuzz_one "$name" "$((runs * FUZZ_TIMES))" $files
	done < <(expected fuzz)
	wait
}

# fuzz_one NAME RUNS FILE...: runs one fuzzer from its seeds, then checks its coverage of each FILE
fuzz_one()
{
	local name=$1 runs=$2 file work=$BUILD_ROOT/build-fuzz/run/$1 seeds=$ROOT/tests/fuzz/seeds/$1 bad=0
	local program=$BUILD_ROOT/build-fuzz/tests/fuzz/$1
	shift 2
	[ -d "$seeds" ] || { echo "no seeds in tests/fuzz/seeds/$name" && return 1; }
	rm -rf "$work"
	mkdir -p "$work/corpus" || return 1
	cd "$work" || return 1
	LLVM_PROFILE_FILE=$work/raw "$program" -runs="$runs" -seed=1 -timeout=$((60 * LIMIT_TIMES)) -rss_limit_mb=1024 \
		-artifact_prefix="$work/" "$work/corpus" "$seeds" || return 1
	llvm-profdata-14 merge -o "$work/profile" "$work/raw" || return 1
	for file in "$@"; do
		# Prints the lines that no input reached.
		llvm-cov-14 show "$program" -instr-profile="$work/profile" 2>/dev/null |
			awk -v file="/$file:" '/^\/.*:$/ { on = index($0, file) } on && /^ *[0-9]+\| +0\|/'
		llvm-cov-14 export "$program" -instr-profile="$work/profile" -summary-only |
			python3 "$ROOT/tests/results.py" coverage "$FUZZ_COVERAGE" "$ROOT/$file" || bad=1
	done
	return "$bad"
}

# The demo in the build of the unit tests. A subshell, because it may call die.
quick_demo()
(
	BENCH=$BUILD_ROOT/build-test/bench/ep-bench
	small_demo
	demo_runs
)

stage_demo()
{
	local shape=(--small)
	if [ "$QUICK" = yes ]; then
		check "demo --small" quick_demo && sed 's/^/        | /' "$LOGS/demo-demo---small.log"
		return
	fi
	[ "$LONG" = no ] || shape=()
	check "demo --build-only" "$ROOT/tools/quickstart" demo --build-only --no-install --build-dir "$BUILD_ROOT" || return
	check "demo ${shape[*]}" "$ROOT/tools/quickstart" demo --no-install --build-dir "$BUILD_ROOT" "${shape[@]}" &&
		sed 's/^/        | /' "$LOGS/demo-demo-${shape[*]}.log"
	check "demo on a machine with 1 GiB scales down with a message" demo_scales_down
	check "ep-bench moe --json" moe_json
	check "high throughput as a user without rights" in_sandbox --mode ht --tokens 128
	check "low latency as a user without rights" in_sandbox --mode ll --tokens 16
	check "through daemons as a user without rights" in_sandbox --service --mode ht --tokens 32
	check "shapes through daemons" service_shapes
	check "the quickstart names missing packages" quickstart_refuses
}

in_sandbox()
{
	"$ROOT/tests/proc/sandbox.sh" "$BUILD_ROOT/$RELEASE/bench/ep-bench" "${DEMO_ARGS[@]}" "$@"
}

moe_json()
{
	local json=$LOGS/bench-moe.json
	"$BUILD_ROOT/$RELEASE/bench/ep-bench" moe --ranks 4 --nodes 2 --tokens 64 --hidden 1024 --topk 8 --experts 64 \
		--dispatch bf16 --mode ll --json >"$json" || return 1
	cat "$json"
	python3 "$ROOT/tests/results.py" bench moe "$json"
}

# Both modes and formats; ranks not divisible by nodes, one rank per node, one node; top-k entries of -1; a network that reorders,
# duplicates and drops. ep-bench judges the results.
service_shapes()
{
	local mode format bench=$BUILD_ROOT/$RELEASE/bench/ep-bench json=$LOGS/bench-moe-service.json bad=0
	local small=(moe --service --quiet --hidden 512 --tokens 32)
	for mode in ll ht; do
		for format in fp8 bf16; do
			service_shape "${small[@]}" --mode "$mode" --dispatch "$format" || bad=1
			service_shape "${small[@]}" --mode "$mode" --dispatch "$format" --ranks 5 --nodes 3 --experts 40 \
				--unselected 0.3 || bad=1
		done
		service_shape "${small[@]}" --mode "$mode" --ranks 4 --nodes 4 --experts 8 --topk 2 || bad=1
		service_shape "${small[@]}" --mode "$mode" --ranks 3 --nodes 1 --experts 6 --topk 2 || bad=1
		service_shape "${small[@]}" --mode "$mode" --ranks 7 --nodes 3 --experts 56 --topk 3 --unselected 0.1 \
			--order unordered --delay-us 20 --reorder 0.1 --duplicate 0.05 --drop 0.02 --seed 7 || bad=1
	done
	"$bench" "${small[@]}" --mode ht --json >"$json" || bad=1
	python3 "$ROOT/tests/results.py" bench moe "$json" || bad=1
	if "$bench" "${small[@]}" --local; then
		echo "--service together with --local was not refused"
		bad=1
	fi
	return "$bad"
}

service_shape()
{
	echo "== $*"
	timeout $((300 * LIMIT_TIMES)) "$BUILD_ROOT/$RELEASE/bench/ep-bench" "$@" && return 0
	echo "exit status $? (124: not within $((300 * LIMIT_TIMES)) s)"
	return 1
}

demo_scales_down()
{
	"$ROOT/tools/quickstart" demo --no-install --build-dir "$BUILD_ROOT" --memory 1100 >"$LOGS/demo-short.log" 2>&1
	local rc=$?
	cat "$LOGS/demo-short.log"
	[ "$rc" = 0 ] && grep -q 'MEMORY IS SHORT' "$LOGS/demo-short.log"
}

# With a PATH of basic tools only, it must name the missing packages and stop.
quickstart_refuses()
{
	local said rc tool bin=$LOGS/bin
	rm -rf "$bin" && mkdir -p "$bin" || return 1
	for tool in bash env readlink dirname cut cksum mkdir awk sort tr cat id; do
		ln -s "$(command -v "$tool")" "$bin/$tool" || return 1
	done
	said=$(PATH=$bin "$ROOT/tools/quickstart" demo --no-install --build-dir "$BUILD_ROOT" 2>&1)
	rc=$?
	echo "$said"
	[ "$rc" = 1 ] && grep -q 'apt-get install .*gcc.*meson' <<<"$said"
}

# Small changes to a copy of the tree, of which each must be noticed by a test (tests/mutate). All of them: tests/mutate/mutate.py run
stage_mutate()
{
	check "a random tenth of the small changes is noticed" python3 "$ROOT/tests/mutate/mutate.py" run --part 10 --work "$BUILD_ROOT/build-mutate" &&
		grep -h '^# ' "$LOGS/mutate-a-random-tenth-of-the-small-changes-is-noticed.log" | sed 's/^/    /'
}

stage_bench()
{
	local form
	check "compile the release program" build_release || return
	for form in "core --nic null" ring p2p "core --service --duration-ms 300 --runs 3" "p2p --service --rounds 3" \
		"jobs --repeat 3" empty; do
		# shellcheck disable=SC2086
		check "ep-bench $form --json" bench_run $form
		sed 's/^/        | /' "$LOGS/bench-${form%% *}.json"
	done
}

# bench_run FORM OPTION...: checks that the figures are valid and nothing was wrong. Speeds are printed, not judged.
bench_run()
{
	local form=$1
	"$BUILD_ROOT/$RELEASE/bench/ep-bench" "$@" --json >"$LOGS/bench-$1.json" || return 1
	[ "${2-}" != --service ] || form=$1-service
	python3 "$ROOT/tests/results.py" bench "$form" "$LOGS/bench-$1.json"
}
