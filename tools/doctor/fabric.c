/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ep-fabric doctor` asks about the fabric itself: secrets, directories, whether the NIC that is set opens, and the daemons of
 * this node with their versions. Called through the table at the end. It must never print a secret, nor disturb a daemon: it says
 * HELLO and goes.
 */
#include "fabric/base/clock.h"
#include "fabric/base/err.h"
#include "fabric/client/epf.h"
#include "fabric/nic/nic.h"
#include "fabric/protocol/channel.h"
#include "fabric/protocol/proto.h"
#include "tools/doctor/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SECRET_LEAST = 16 };

static void check_secret(struct doctor *d, const char *option, const char *path)
{
	char fix[DOCTOR_LINE];
	struct stat st;

	snprintf(fix, sizeof(fix), "chmod 600 %s", path);
	if (access(path, R_OK) || stat(path, &st))
		doctor_say(d, DOCTOR_FAIL, "name a file that this user can read", "%s %s: %s",
			   option, path, strerror(errno));
	else if (st.st_size < SECRET_LEAST)
		doctor_say(d, DOCTOR_FAIL,
			   "head -c 32 /dev/urandom | base64 >FILE, the same file on every node",
			   "%s %s: %lld bytes, a secret has at least %d", option, path,
			   (long long)st.st_size, SECRET_LEAST);
	else if (st.st_mode & 077)
		doctor_say(d, DOCTOR_WARN, fix, "%s %s: others can read or write it (mode %03o)",
			   option, path, (unsigned int)st.st_mode & 0777);
	else
		doctor_say(d, DOCTOR_OK, NULL, "%s %s: readable, private", option, path);
}

static void check_secrets(struct doctor *d)
{
	const char *fabric = d->conf.fabric_secret_file, *job = d->conf.secret_file;

	if (*fabric)
		check_secret(d, "fabric-secret-file", fabric);
	else if (d->needs_rdma && !getenv("EPF_FABRIC_SECRET_FD"))
		doctor_say(
			d, DOCTOR_WARN, "fabric-secret-file = FILE, the same secret on every node",
			"no fabric-secret-file: a daemon with this NIC refuses jobs of several nodes (EPF-711)");
	if (*job)
		check_secret(d, "secret-file", job);
	if (!*fabric && !*job && !*d->conf.secret && d->conf.nic == EPF_CONF_NIC_TCP)
		doctor_say(
			d, DOCTOR_WARN,
			"secret-file = FILE (daemons: fabric-secret-file), the same on every host; ep-fabric launch makes one for its job",
			"nic tcp and no secret: it listens on loopback only");
	else if (!*fabric && !*job && !d->needs_rdma)
		doctor_say(d, DOCTOR_SKIP, NULL,
			   "no secret is set, and a NIC that stays on this machine needs none");
}

static void check_directory(struct doctor *d, const char *option, const char *path)
{
	char fix[DOCTOR_LINE];
	struct stat st;

	snprintf(fix, sizeof(fix), "set %s to a directory that this user can write", option);
	if (stat(path, &st)) {
		if (errno == ENOENT)
			doctor_say(d, DOCTOR_OK, NULL, "%s %s is not there yet and will be made",
				   option, path);
		else
			doctor_say(d, DOCTOR_FAIL, fix, "%s %s: %s", option, path, strerror(errno));
	} else if (!S_ISDIR(st.st_mode)) {
		doctor_say(d, DOCTOR_FAIL, fix, "%s %s is no directory", option, path);
	} else if (access(path, R_OK | X_OK)) {
		doctor_say(d, DOCTOR_FAIL, "join the group of service-group, or run as its owner",
			   "%s %s: this user may not look into it", option, path);
	} else {
		doctor_say(d, DOCTOR_OK, NULL, "%s %s%s", option, path,
			   access(path, W_OK) ? " can be read: clients can connect"
					      : " can be written");
	}
}

static void check_directories(struct doctor *d)
{
	char stats[4096];

	if (epf_conf_stats_dir(&d->conf, stats, sizeof(stats))) {
		doctor_say(d, DOCTOR_FAIL, "set stats-dir", "%s", epf_last_error());
		return;
	}
	check_directory(d, "stats-dir", stats);
	if (*d->conf.runtime_dir && strcmp(d->conf.runtime_dir, stats) != 0)
		check_directory(d, "runtime-dir", d->conf.runtime_dir);
}

static uint64_t now(void *arg)
{
	return epf_now_ns();
}

static void check_nic(struct doctor *d)
{
	const char *name = epf_conf_nic(&d->conf);
	const struct epf_nic_ops *ops = epf_nic_find(name);
	struct epf_nic_caps caps;
	struct epf_nic *nic;

	if (d->is_recorded) {
		doctor_say(d, DOCTOR_SKIP, NULL, "a recorded machine has no NIC to open");
		return;
	}
	/* The error has its remedy inside. */
	if (ops->open(&d->conf, now, NULL, &nic)) {
		doctor_say(d, DOCTOR_FAIL, NULL, "nic %s cannot be opened: %s", name,
			   epf_last_error());
		return;
	}
	nic->ops->describe(nic, &caps);
	doctor_say(d, DOCTOR_OK, NULL,
		   "nic %s opens: %s, %u lanes at most; ep-fabric nics --prove checks what it does",
		   name, caps.ordered ? "ordered" : "unordered", caps.max_lanes);
	nic->ops->close(nic);
}

static void check_daemon(struct doctor *d, const char *dir, const char *socket)
{
	char path[4096];
	struct epf_svc_hello_reply hello;
	struct epf_svc_channel *ch;
	int rc;

	if (snprintf(path, sizeof(path), "%s/%s", dir, socket) >= (int)sizeof(path))
		return;
	rc = epf_svc_channel_open(path, 0, &ch);
	if (!rc) {
		rc = epf_svc_hello(ch, 1, "ep-fabric doctor", &hello, d->conf.service_timeout_ns);
		epf_svc_channel_close(ch);
	}
	if (rc)
		doctor_say(d, epf_last_reason() == EPF_R_SVC_VERSION ? DOCTOR_FAIL : DOCTOR_WARN,
			   NULL, "%s: %s", path, epf_last_error());
	else if (strcmp(hello.version, epf_version()) != 0)
		doctor_say(
			d, DOCTOR_WARN,
			"restart the daemon after an upgrade: ep-fabric drain --wait, then start it again",
			"%s: release %s, this program %s; protocol %u.%u and %u.%u understand each other",
			path, hello.version, epf_version(), hello.major, hello.minor, EPF_SVC_MAJOR,
			EPF_SVC_MINOR);
	else
		doctor_say(d, DOCTOR_OK, NULL, "%s: release %s, protocol %u.%u, as this program",
			   path, hello.version, hello.major, hello.minor);
}

static int is_socket(const struct dirent *e)
{
	size_t n = strlen(e->d_name);

	return n > 5 && !strcmp(e->d_name + n - 5, ".sock");
}

static void check_daemons(struct doctor *d)
{
	struct dirent **found = NULL;
	char dir[4096];
	int n = -1;

	if (d->is_recorded) {
		doctor_say(d, DOCTOR_SKIP, NULL, "a recorded machine has no daemon to ask");
		return;
	}
	if (*d->conf.runtime_dir)
		snprintf(dir, sizeof(dir), "%s", d->conf.runtime_dir);
	else if (epf_conf_stats_dir(&d->conf, dir, sizeof(dir)))
		return;
	n = scandir(dir, &found, is_socket, alphasort);
	for (int i = 0; i < n; i++) {
		check_daemon(d, dir, found[i]->d_name);
		free(found[i]);
	}
	free(found);
	if (n <= 0)
		doctor_say(d, DOCTOR_SKIP, NULL, "no daemon has a socket in %s", dir);
}

const struct doctor_check doctor_fabric_checks[] = {
	{ "secrets", "the files with secrets can be read, by nobody else", check_secrets },
	{ "directories", "where statistics and sockets lie", check_directories },
	{ "nic", "the NIC that is set opens", check_nic },
	{ "daemons", "this node's daemons answer, and are of this release", check_daemons },
	{ 0 },
};
