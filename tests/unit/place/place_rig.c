/* SPDX-License-Identifier: Apache-2.0 */
/*
 * place_rig.h: trees are made by tests/place/tree.py in a folder below the temporary directory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fabric/base/err.h"
#include "tests/unit/place/place_rig.h"

static const char *python, *script, *trees;

bool place_rig_args(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: %s PYTHON TREE.PY FOLDER-OF-TREES\n", argv[0]);
		return false;
	}
	python = argv[1];
	script = argv[2];
	trees = argv[3];
	return true;
}

static void shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void shell(const char *fmt, ...)
{
	char line[4096];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	assert_true(n > 0 && n < (int)sizeof(line));
	if (system(line))
		fail_msg("failed: %s", line);
}

void place_rig_init(struct place_rig *rig, const char *tree)
{
	const char *tmp = getenv("TMPDIR");

	memset(rig, 0, sizeof(*rig));
	snprintf(rig->dir, sizeof(rig->dir), "%.40s/epf-place-XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(rig->dir));
	assert_int_equal(epf_conf_init(&rig->conf), 0);
	if (tree)
		shell("'%s' '%s' expand '%s/%s.tree' '%s'", python, script, trees, tree, rig->dir);
}

static void forget(struct place_rig *rig)
{
	epf_place_plan_destroy(&rig->plan);
	epf_place_map_destroy(&rig->map);
}

void place_rig_destroy(struct place_rig *rig)
{
	forget(rig);
	epf_conf_destroy(&rig->conf);
	shell("rm -rf '%s'", rig->dir);
}

void place_rig_add(struct place_rig *rig, const char *lines)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s.tree", rig->dir);
	f = fopen(path, "w");
	assert_non_null(f);
	assert_true(fputs(lines, f) >= 0);
	assert_int_equal(fclose(f), 0);
	shell("'%s' '%s' expand '%s' '%s'", python, script, path, rig->dir);
	unlink(path);
}

void place_rig_put(struct place_rig *rig, const char *path, const char *text)
{
	char full[512];
	FILE *f;

	snprintf(full, sizeof(full), "%s/%s", rig->dir, path);
	f = fopen(full, "w");
	if (!f)
		fail_msg("no %s", full);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

void place_rig_link(struct place_rig *rig, const char *path, const char *target)
{
	char full[512];

	snprintf(full, sizeof(full), "%s/%s", rig->dir, path);
	if (remove(full))
		shell("rm -rf '%s'", full);
	if (target)
		assert_int_equal(symlink(target, full), 0);
}

void place_rig_copy(struct place_rig *from, struct place_rig *to)
{
	shell("'%s' '%s' record '%s' >'%s.tree'", python, script, from->dir, to->dir);
	shell("'%s' '%s' expand '%s.tree' '%s'", python, script, to->dir, to->dir);
	shell("rm '%s.tree'", to->dir);
}

void place_rig_set(struct place_rig *rig, const char *name, const char *value)
{
	assert_int_equal(epf_conf_set(&rig->conf, name, value, EPF_CONF_CLI), 0);
}

int place_rig_plan(struct place_rig *rig)
{
	struct epf_place_opts opts = {
		.map = &rig->map,
		.select = &rig->conf.nic_device,
		.cpus = &rig->conf.cpu,
		.gpu_pci = rig->gpu_pci,
		.indices = rig->indices,
	};
	int rc;

	forget(rig);
	epf_clear_error();
	rc = epf_place_read(rig->dir, &rig->map);
	return rc ? rc : epf_place_choose(&opts, &rig->plan);
}

void place_rig_replan(struct place_rig *rig)
{
	int rc = place_rig_plan(rig);

	if (rc)
		fail_msg("%d: %s", rc, epf_last_error());
}

static const char *rail_list(const struct place_rig *rig, const uint32_t *rail, uint32_t count)
{
	static char text[4][4096];
	static unsigned int turn;
	char *buf = text[turn++ % 4], *at = buf;

	*at = '\0';
	for (uint32_t i = 0; i < count; i++) {
		const struct epf_place_rail *r = &rig->plan.rail[rail[i]];

		at += snprintf(at, (size_t)(buf + 4096 - at), "%s%s:%u", i ? "," : "", r->nic->name,
			       r->port->number);
	}
	return buf;
}

const char *place_rig_own(const struct place_rig *rig, uint32_t index)
{
	const struct epf_place_choice *c = &rig->plan.choice[index];

	assert_true(index < rig->plan.choices);
	return rail_list(rig, c->rail, c->own);
}

const char *place_rig_spares(const struct place_rig *rig, uint32_t index)
{
	const struct epf_place_choice *c = &rig->plan.choice[index];

	assert_true(index < rig->plan.choices);
	return rail_list(rig, c->rail + c->own, c->rails - c->own);
}

const struct epf_place_rail *place_rig_rail(const struct place_rig *rig, const char *name)
{
	for (uint32_t r = 0; r < rig->plan.rails; r++)
		if (!strcmp(rig->plan.rail[r].nic->name, name))
			return &rig->plan.rail[r];
	fail_msg("no rail of %s", name);
	return NULL;
}

static bool has_note(char *const *note, uint32_t notes, const char *text, bool show)
{
	for (uint32_t i = 0; i < notes; i++) {
		if (show)
			print_error("note: %s\n", note[i]);
		else if (strstr(note[i], text))
			return true;
	}
	return false;
}

void place_rig_assert_note(const struct place_rig *rig, const char *text)
{
	if (has_note(rig->map.note, rig->map.notes, text, false) ||
	    has_note(rig->plan.note, rig->plan.notes, text, false))
		return;
	has_note(rig->map.note, rig->map.notes, text, true);
	has_note(rig->plan.note, rig->plan.notes, text, true);
	fail_msg("no note '%s'", text);
}
