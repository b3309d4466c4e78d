/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-top without a terminal: prints one shot or many, as text, JSON or metrics (run.h). It writes to stdout and to the recording.
 */
#include "tools/top/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int print_json(const struct top_run *run, const struct top_shot *shot, uint32_t number,
		      uint32_t *schema_version)
{
	bool with_schema = number == 0 || *schema_version != run->schema->version;
	json_t *top = top_json(run->schema, shot, with_schema);
	int rc = !top || json_dumpf(top, stdout, run->once ? JSON_INDENT(1) : JSON_COMPACT) ||
		 putchar('\n') == EOF;

	*schema_version = run->schema->version;
	json_decref(top);
	return rc ? -EIO : 0;
}

/* Names that were given and cannot be read: one line each. */
static int complain(const struct top_run *run, const struct top_shot *shot)
{
	char text[80];
	int bad = 0;

	for (uint32_t i = 0; i < shot->n_instances; i++)
		if (!shot->instance[i].read) {
			fprintf(stderr, "ep-top: %s\n", shot->instance[i].error);
			bad++;
		}
	if (!shot->n_instances && !run->has_names && !top_source_records(run->source))
		fprintf(stderr, "ep-top: %s\n", waits_nobody(shot->left_out, text, sizeof(text)));
	return bad;
}

static int print_shot(const struct top_run *run, const struct top_shot *shot,
		      const struct top_shot *before, uint32_t number, uint32_t *schema_version)
{
	int rc;

	if (run->prometheus)
		rc = top_prometheus(stdout, run->schema, shot, run->peer_labels);
	else if (run->json)
		rc = print_json(run, shot, number, schema_version);
	else
		rc = top_print(stdout, run->schema, shot, before, &run->look);
	if (!rc && !run->json && !run->prometheus && run->iterations != 1)
		putchar('\n');
	if (fflush(stdout) || ferror(stdout))
		rc = -EIO;
	return rc;
}

static void pause_for(double seconds)
{
	struct timespec ts = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };

	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

/* Prints run->iterations shots, of a recording the last one where --once was given. */
static int print_all(struct top_run *run, struct top_shot **now, struct top_shot **before, int *bad,
		     char *reason, size_t bytes)
{
	uint32_t records = top_source_records(run->source), schema_version = 0;
	int rc;

	if (run->once && records)
		top_source_seek(run->source, records);
	for (uint32_t i = 0; !run->iterations || i < run->iterations; i++) {
		if (i && !records)
			pause_for(run->delay_s);
		top_shot_free(*before);
		*before = *now;
		*now = NULL;
		rc = top_source_next(run->source, now, reason, bytes);
		if (rc == -ENODATA && records && i)
			return 0;
		if (rc)
			return rc;
		if (run->record)
			rc = top_record_add(run->record, run->schema, *now, reason, bytes);
		if (rc)
			return rc;
		if (i == 0)
			*bad = complain(run, *now);
		rc = print_shot(run, *now, *before, i, &schema_version);
		if (rc) {
			snprintf(reason, bytes, "cannot write: %s",
				 strerror(rc == -EIO ? EIO : -rc));
			return rc;
		}
	}
	return 0;
}

int top_run_batch(struct top_run *run)
{
	struct top_shot *now = NULL, *before = NULL;
	char reason[512] = "failed";
	int bad = 0, rc = print_all(run, &now, &before, &bad, reason, sizeof(reason));

	top_shot_free(now);
	top_shot_free(before);
	if (rc)
		fprintf(stderr, "ep-top: %s\n", reason);
	if (top_source_damaged(run->source))
		fprintf(stderr, "ep-top: %u damaged line(s) of the recording left out\n",
			top_source_damaged(run->source));
	return rc || bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
