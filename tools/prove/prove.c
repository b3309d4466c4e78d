/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the checks over the NIC that is set: see prove.h. */
#include "tools/prove/prove.h"

#include "bootstrap/boot.h"
#include "fabric/base/clock.h"
#include "fabric/base/conf.h"
#include "fabric/base/err.h"
#include "fabric/gpu/copy.h"
#include "fabric/gpu/gpu.h"
#include "tools/prove/far.h"
#include "tools/prove/rig.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND 1000000000ull

/* What checks of these flags change of the settings; each is of one queue or lane alone. */
static const struct setting {
	unsigned flag;
	const char *name, *value;
} changes[] = {
	{ CHECK_FEW, "verbs-completions", "256" },
	{ CHECK_PATIENT, "verbs-timeout", "17" }, /* 0.5 s, seven times */
	{ CHECK_PATIENT, "verbs-retries", "6" },
	{ CHECK_PATIENT, "verbs-rnr-retries", "7" }, /* without end */
	{ CHECK_PATIENT, "emu-retry-timeout", "30s" },
	{ CHECK_PATIENT, "emu-rnr-timeout", "20s" },
	{ CHECK_GPU, "emu-retry-timeout", "20s" }, /* the first copy may load the driver */
};

struct run {
	const struct prove_opts *opts;
	struct nic_kind kind;
	struct far far;
	const struct check *check;
};

/* Where a check ends that does not return. */
static struct {
	jmp_buf out;
	enum prove_verdict verdict;
	char text[PROVE_TEXT];
} stop;

static void broken(const char *file, int line, const char *text)
{
	const char *name = strrchr(file, '/');

	stop.verdict = PROVE_BROKEN;
	snprintf(stop.text, sizeof(stop.text), "%s (%s:%d)", text, name ? name + 1 : file, line);
	longjmp(stop.out, 1);
}

static void not_tried(const char *why)
{
	stop.verdict = PROVE_NOT_TRIED;
	snprintf(stop.text, sizeof(stop.text), "%s", why);
	longjmp(stop.out, 1);
}

/* Between two hosts a NIC that leaves the machine has to know the key of both. */
static int tell_job(struct epf_nic *nic, struct epf_boot *boot)
{
	struct epf_nic_job job = { .route = NULL };
	char host[EPF_BOOT_ADDRESS_MAX] = "";
	bool is_secret = false;
	int rc;

	if (!boot)
		return 0;
	rc = epf_boot_job_key(boot, "ep-fabric nics --prove", job.key);
	if (!rc)
		rc = epf_boot_route(boot, host, &is_secret);
	job.is_secret = is_secret;
	job.route = host[0] ? host : NULL;
	if (!rc)
		rc = nic->ops->set_job(nic, &job);
	explicit_bzero(job.key, sizeof(job.key));
	return rc;
}

static int copy_conf(const struct epf_conf *conf, struct epf_conf *out)
{
	int rc = 0;

	for (int id = 0; id < EPF_CONF_KEYS && !rc; id++) {
		const struct epf_conf_key *key = epf_conf_key((enum epf_conf_id)id);
		char *text;

		if (key->type == EPF_CONF_SECRET || conf->origin[id].source == EPF_CONF_DEFAULT)
			continue;
		text = epf_conf_value(conf, (enum epf_conf_id)id);
		rc = text ? epf_conf_set(out, key->name, text, EPF_CONF_PROGRAM) : -ENOMEM;
		free(text);
	}
	return rc;
}

/* The same settings with the changes of a check. */
static int changed_conf(const struct epf_conf *conf, unsigned flags, struct epf_conf *out)
{
	struct epf_conf copy;
	int rc = epf_conf_init(&copy);

	if (rc)
		return epf_fail(EPF_R_NO_MEMORY, "settings");
	rc = copy_conf(conf, &copy);
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]) && !rc; i++)
		if (flags & changes[i].flag)
			rc = epf_conf_set(&copy, changes[i].name, changes[i].value, EPF_CONF_CLI);
	if (rc)
		epf_conf_destroy(&copy);
	else
		*out = copy; /* moved */
	return rc;
}

int prove_conf_like(const struct epf_conf *conf, const char *name, const char *value,
		    struct epf_conf *out)
{
	int rc = changed_conf(conf, 0, out);

	if (!rc)
		rc = epf_conf_set(out, name, value, EPF_CONF_CLI);
	else
		return rc;
	if (rc)
		epf_conf_destroy(out);
	return rc;
}

static int open_here(const struct epf_conf *conf, struct epf_boot *boot, uint64_t (*now)(void *),
		     void *arg, struct epf_nic **out)
{
	const struct epf_nic_ops *ops = epf_nic_find(epf_conf_nic(conf));
	struct epf_nic *nic;
	int rc = ops->open(conf, now, arg, &nic);

	if (rc)
		return rc;
	rc = tell_job(nic, boot);
	if (rc)
		nic->ops->close(nic);
	else
		*out = nic;
	return rc;
}

static uint64_t now(void *arg)
{
	return epf_now_ns();
}

static int open_changed(const struct epf_conf *conf, unsigned flags, struct epf_boot *boot,
			struct epf_nic **out)
{
	struct epf_conf changed;
	int rc = changed_conf(conf, flags, &changed);

	if (rc)
		return rc;
	rc = open_here(&changed, boot, now, NULL, out);
	epf_conf_destroy(&changed);
	return rc;
}

/* nic_kind.open of both ends. */
static int open_end(const struct epf_emu_opts *unused, int end, uint64_t (*clock)(void *),
		    void *arg, struct epf_nic **out)
{
	struct run *r = ((struct rig *)arg)->user;
	const struct prove_opts *o = r->opts;
	const struct epf_conf *conf = end && o->peer ? o->peer : o->conf;
	int rc;

	if (end && o->boot)
		return far_open(&r->far, r->check->flags, out);
	rc = open_changed(conf, r->check->flags, o->boot, out);
	if (!rc && o->wrap)
		o->wrap(out, end);
	return rc;
}

/* What epf_nic_caps does not say. Providers of libfabric differ; what they must not do is said by the checks. */
static void fill_kind(struct run *r, const char *name, const struct epf_nic_caps *caps)
{
	int is_ofi = !strcmp(name, "ofi"), is_efa = !strcmp(name, "efa");
	const char *provider = r->opts->conf->ofi_provider;

	r->kind = (struct nic_kind){
		.name = name,
		.ordered = caps->ordered,
		.carries = caps->carries_events,
		.real = 1,
		.device = 1,
		.eager = is_ofi || is_efa,
		.unsolicited = is_ofi || is_efa,
		.open = open_end,
		.refusal = is_ofi ? !strcmp(provider, "tcp")   ? NIC_REFUSAL_LOST
				    : !strcmp(provider, "shm") ? NIC_REFUSAL_SILENT
							       : NIC_REFUSAL_NAMED
				  : NIC_REFUSAL_NAMED,
		.lengthless = is_ofi,
	};
}

/* A rig of GPU memory; not tried where there is none. */
static void use_gpu(struct run *r, struct rig *rig, struct nic_kind *kind)
{
	const char *name = epf_copy_gpu_name(r->opts->conf);

	if (r->opts->boot)
		rig_not_tried("GPU memory is tried on one host");
	if (epf_copy_ops_find(epf_copy_name(r->opts->conf), &rig->copy) || rig->copy->load())
		rig_not_tried("no GPU, or no driver of it (gpu-backend is %s)", name);
	if (epf_gpu_backend(name, &rig->gpu_ops))
		rig->gpu_ops = NULL;
	kind->gpu = 3;
}

/* How long the NIC itself takes to give up, as it is set. */
static void fill_limits(const struct epf_conf *conf, struct rig *rig)
{
	const char *nic = rig->kind->name;
	/* An InfiniBand timeout, which devices may take four times as long (IBTA 9.7.6.1.3). */
	uint64_t verbs = 4 * (4096ull << conf->verbs_timeout) * (conf->verbs_retries + 1);

	rig->rnr_timeout_ns = 5 * SECOND;
	rig->lost_ns = 5 * SECOND;
	if (!strcmp(nic, "emu")) {
		rig->rnr_timeout_ns = conf->emu_rnr_timeout_ns;
		rig->lost_ns = conf->emu_retry_timeout_ns * 5 / 4;
	} else if (!strcmp(nic, "verbs")) {
		rig->rnr_timeout_ns = conf->verbs_rnr_retries == 7 ? 0 : 5 * SECOND;
		rig->lost_ns = verbs;
	} else if (!strcmp(nic, "tcp")) {
		rig->lost_ns = conf->tcp_timeout_ns * 5 / 4;
	}
}

static void fill_rig(struct run *r, struct rig *rig, struct nic_kind *kind, uint64_t deadline_ns)
{
	rig->kind = kind;
	rig->user = r;
	rig->far = r->opts->boot ? &r->far.memory : NULL;
	fill_limits(r->opts->conf, rig);
	rig->deadline_ns = deadline_ns;
	rig->lanes = PROVE_LANES;
}

static void run_row(struct run *r, struct prove_row *row, uint64_t end_ns)
{
	uint64_t since = epf_now_ns(), deadline = since + PROVE_ROW_SECONDS * SECOND;
	struct rig *volatile rig = calloc(1, sizeof(*rig));
	static struct nic_kind kind;

	kind = r->kind;
	r->check = row->check;
	row->verdict = PROVE_HELD;
	if (setjmp(stop.out)) {
		row->verdict = stop.verdict;
		snprintf(row->detail, sizeof(row->detail), "%s", stop.text);
	} else {
		if (!rig)
			rig_not_tried("out of memory");
		if (since >= end_ns)
			rig_not_tried("the two minutes for all checks were over");
		if (row->check->flags & CHECK_ARRIVALS && !kind.carries)
			rig_not_tried("nothing arrives through this NIC");
		if (row->check->flags & CHECK_GPU)
			use_gpu(r, rig, &kind);
		fill_rig(r, rig, &kind, deadline < end_ns ? deadline : end_ns);
		rig_start(rig);
		row->check->run(rig);
	}
	rig_close(rig);
	row->ns = epf_now_ns() - since;
}

static const char *word(enum prove_verdict verdict)
{
	static const char *const words[] = { "held", "BROKEN", "not tried" };

	return words[verdict];
}

static unsigned count_rows(const char *only)
{
	unsigned n = 0;

	for (const struct check *const *table = check_tables; *table; table++)
		for (const struct check *c = *table; c->key; c++)
			n += !only || !strcmp(only, c->key);
	return n;
}

static int run_rows(struct run *r, struct prove_report *out, uint64_t since)
{
	const struct prove_opts *o = r->opts;
	unsigned of = count_rows(o->only);

	for (const struct check *const *table = check_tables; *table; table++)
		for (const struct check *c = *table; c->key && out->n < PROVE_ROWS; c++) {
			struct prove_row *row = &out->rows[out->n];

			if (o->only && strcmp(o->only, c->key) != 0)
				continue;
			row->check = c;
			if (o->progress)
				fprintf(o->progress, "%2u/%u %-22s ", out->n + 1, of, c->key);
			run_row(r, row, since + PROVE_SECONDS * SECOND);
			if (r->far.lost) {
				if (o->progress)
					fputs("the other host is gone\n", o->progress);
				return r->far.lost;
			}
			out->n++;
			out->held += row->verdict == PROVE_HELD;
			out->broken += row->verdict == PROVE_BROKEN;
			out->not_tried += row->verdict == PROVE_NOT_TRIED;
			if (o->progress)
				fprintf(o->progress, "%-9s %6.1f s\n", word(row->verdict),
					(double)row->ns / 1e9);
		}
	return 0;
}

static void join_list(char *to, size_t size, const struct epf_conf *conf)
{
	*to = '\0';
	for (size_t i = 0; i < conf->nic_device.count; i++) {
		size_t at = strlen(to);

		snprintf(to + at, size - at, "%s%s", at ? "," : "", conf->nic_device.item[i]);
	}
}

int prove_run(const struct prove_opts *opts, struct prove_report *out)
{
	struct rig_verdicts before = rig_verdicts;
	const char *name = epf_conf_nic(opts->conf);
	struct run *r = calloc(1, sizeof(*r));
	uint64_t since = epf_now_ns();
	struct epf_nic *nic;
	int rc;

	if (!r)
		return epf_fail(EPF_R_NO_MEMORY, "the checks");
	memset(out, 0, sizeof(*out));
	r->opts = opts;
	snprintf(out->nic, sizeof(out->nic), "%s", name);
	if (gethostname(out->host, sizeof(out->host) - 1))
		snprintf(out->host, sizeof(out->host), "?");
	join_list(out->device, sizeof(out->device), opts->conf);
	join_list(out->peer_device, sizeof(out->peer_device), opts->peer ? opts->peer : opts->conf);
	rc = opts->boot ? far_greet(opts->boot, name, out->peer_host, sizeof(out->peer_host)) : 0;
	if (!rc)
		rc = open_here(opts->conf, NULL, now, NULL, &nic);
	if (!rc) {
		nic->ops->describe(nic, &out->caps);
		nic->ops->close(nic);
		fill_kind(r, name, &out->caps);
		far_init(&r->far, opts->boot);
		rig_verdicts = (struct rig_verdicts){ broken, not_tried, NULL };
		rc = run_rows(r, out, since);
		rig_verdicts = before;
		if (opts->boot)
			far_end(&r->far);
	}
	out->caps.name = NULL;
	out->ns = epf_now_ns() - since;
	free(r);
	return rc;
}

struct serving {
	const struct epf_conf *conf;
	struct epf_boot *boot;
};

static int open_serving(void *arg, unsigned flags, struct epf_nic **out)
{
	struct serving *s = arg;

	return open_changed(s->conf, flags, s->boot, out);
}

int prove_serve(const struct epf_conf *conf, struct epf_boot *boot)
{
	struct serving s = { conf, boot };
	char host[64];
	int rc = far_greet(boot, epf_conf_nic(conf), host, sizeof(host));

	return rc ? rc : far_serve(boot, open_serving, &s);
}
