#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A Slurm Prolog (slurm.conf: Prolog=): a node whose daemon does not serve is not given to a job. Slurm drains the node when
# this fails, and shows the last line. Never run under a real Slurm by us.
set -u

fail()
{
	logger -t ep-fabric-prolog "job ${SLURM_JOB_ID:-?}: $*"
	echo "print ep-fabric: $*"
	exit 1
}

# The settings of /etc/ep-fabric.conf say where the daemon is.
ep-fabric status --instance=node >/dev/null 2>&1 || {
	systemctl start ep-fabric.service || fail "the daemon does not start: journalctl -u ep-fabric"
	ep-fabric status --instance=node >/dev/null || fail "the daemon does not answer: ep-fabric doctor"
}
# Warnings are for the administrator's day; failures are for now.
why=$(ep-fabric doctor | sed -n 's/^FAIL *//p' | head -n 1)
[ -z "$why" ] || fail "$why"
# TaskProlog of the site may print this, so that the ranks use the daemon: export EPF_SERVICE=node
exit 0
