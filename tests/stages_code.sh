# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Stages that read the code or compile it: format, static, layers, build, aarch64. Sourced by tests/stages.sh, which has their helpers.

stage_format()
{
	local files
	if ! git -C "$ROOT" -c safe.directory='*' rev-parse >/dev/null 2>&1; then
		fail "list of files" "no git checkout here: clone the repository to run this stage"
		return
	fi
	mapfile -t files < <(tree_files '*.c' '*.h' '*.cu' '*.cuh')
	check "clang-format, ${#files[@]} files" side_by_side clang-format-14 --dry-run --Werror -- "${files[@]}"
	mapfile -t files < <(tree_files '*' ':!tests/fuzz/seeds' ':!LICENSE')
	check "codespell" in_root codespell -q 3 -L inout,fo,te,ans,nd,ue,hda,iput "${files[@]}"
	check "SPDX line in every source" spdx
	mapfile -t files < <(tree_files '*.sh' tools/quickstart .ci/run)
	check "shellcheck, ${#files[@]} files" side_by_side shellcheck -x -- "${files[@]}"
}

in_root()
{
	(cd "$ROOT" && "$@")
}

# side_by_side COMMAND... -- FILE...: runs the command in the root over all files, a few at a time, $JOBS processes next to each other. Fails if one does.
side_by_side()
{
	local command=()
	while [ "$1" != -- ]; do
		command+=("$1")
		shift
	done
	shift
	(cd "$ROOT" && printf '%s\0' "$@" | xargs -0 -P "$JOBS" -n $(($# / (8 * JOBS) + 1)) "${command[@]}")
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
	local files macros=("-D__$(uname -m)__" -D__linux__ -D_GNU_SOURCE -DEPF_WITH_SDT -DEPF_WITH_VERBS -DEPF_WITH_OFI -DEPF_WITH_MICROHTTPD -DEPF_WITH_ZSTD)
	[ "$LONG" = no ] || macros=()
	mapfile -t files < <(tree_files '*.c' ':!tests' ':!tools/nixl' ':!docs')
	[ ${#files[@]} -gt 0 ] || { fail "list of files" "no git checkout here: clone the repository to run this stage" && return; }
	# Not cppcheck's -j: it takes the files in the order of their names, and one CPU is idle for half of the time.
	check "cppcheck, ${#files[@]} files" side_by_side cppcheck "${macros[@]}" --quiet --std=c11 --language=c --library=posix \
		--enable=warning,performance,portability --inline-suppr --error-exitcode=1 \
		--suppress=missingInclude --suppress=missingIncludeSystem --suppress=unknownMacro \
		--suppress=unmatchedSuppression --suppress=uninitvar --suppress=arrayIndexThenCheck \
		--suppress=invalidPointerCast --suppress=invalidFunctionArg --suppress=readdirCalled --suppress=getgrnamCalled -I . -- "${files[@]}"
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

# Debian's aarch64 libraries, unpacked and never installed. Fetched ahead (prefetch).
AARCH64_ROOT=build-aarch64-root
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
	local sysroot=$BUILD_ROOT/$AARCH64_ROOT name programs=()
	local cross=$sysroot/cross.ini optimization=1
	[ "$LONG" = no ] || optimization=2
	ahead_end aarch64
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
	wait_beside
}
