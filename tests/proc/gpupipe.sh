#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The bare pipeline of tests/gpu/hosts.sh over a fake GPU: both ends find the right bytes, and without a GPU it says so. Run by meson: gpupipe.sh GPUPIPE.
set -u
pipe=$1
port=$("$(dirname "$0")/../free_port.py")
timeout $((50 * ${LIMIT_TIMES:-1})) "$pipe" "$port" fake 0 100000 20 &
timeout $((50 * ${LIMIT_TIMES:-1})) "$pipe" "$port" fake 0 100000 20 127.0.0.1 || { echo "the sender: exit status $?" && exit 1; }
wait $! || { echo "the receiver: exit status $?" && exit 1; }
timeout $((50 * ${LIMIT_TIMES:-1})) "$pipe" "$port" none 0 100000 20 127.0.0.1
[ $? = 77 ] || { echo "not skipped where there is no GPU" && exit 1; }
