/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the configuration with the origin of each value, for ep-fabric config: a table for
 * people, JSON for programs. Called by tools. It must never print a secret, only whether it is
 * set.
 */
#include "fabric/base/conf_priv.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static bool is_wanted(const struct epf_conf *conf, enum epf_conf_id id, unsigned int flags)
{
	return !(flags & EPF_CONF_PRINT_CHANGED) || conf->origin[id].source != EPF_CONF_DEFAULT;
}

static void print_docs(FILE *out, const struct epf_conf_key *key)
{
	char range[160], var[64];

	epf_conf_range(key, range, sizeof(range));
	epf_conf_variable_name(key, var, sizeof(var));
	fprintf(out, "    %s\n    range: %s; default: %s; variable: %s%s%s; level: %s\n\n",
		key->doc, range, *key->def ? key->def : "empty", var,
		*key->aliases ? ", else " : "", key->aliases,
		key->level == EPF_CONF_BASIC ? "basic" : "expert");
}

static int print_text(FILE *out, const struct epf_conf *conf, unsigned int flags)
{
	int last_group = -1;

	for (int i = 0; i < EPF_CONF_KEYS; i++) {
		enum epf_conf_id id = (enum epf_conf_id)i;
		int group = (int)epf_conf_group_of(id);
		char *value;

		if (!is_wanted(conf, id, flags))
			continue;
		value = epf_conf_value(conf, id);
		if (!value)
			return -ENOMEM;
		if (group != last_group)
			fprintf(out, "%s# %s\n", last_group < 0 ? "" : "\n",
				epf_conf_group_title((enum epf_conf_group)group));
		last_group = group;
		fprintf(out, "%-22s = %-16s (%s)\n", epf_conf_key(id)->name, value,
			epf_conf_origin(conf, id));
		free(value);
		if (flags & EPF_CONF_PRINT_DOCS)
			print_docs(out, epf_conf_key(id));
	}
	return 0;
}

static const char *unit_of(enum epf_conf_type type)
{
	if (type == EPF_CONF_TIME)
		return "ns";
	return type == EPF_CONF_SIZE ? "bytes" : NULL;
}

/* Numbers as numbers; null stands for auto, and for a secret. */
static json_t *json_value(const struct epf_conf *conf, const struct epf_conf_key *key)
{
	union epf_conf_value v;
	json_t *array;

	epf_conf_fetch(conf, key, &v);
	switch (key->type) {
	case EPF_CONF_BOOL:
		return json_boolean(v.b);
	case EPF_CONF_AUTO:
		return v.i < 0 ? json_null() : json_integer(v.i);
	case EPF_CONF_PROB:
		return json_real(v.d);
	case EPF_CONF_ENUM:
		return json_string(key->words[v.word]);
	case EPF_CONF_STRING:
	case EPF_CONF_PATH:
		return json_string(v.text);
	case EPF_CONF_SECRET:
		return json_null();
	case EPF_CONF_LIST:
		array = json_array();
		for (uint32_t i = 0; i < v.list.count; i++)
			json_array_append_new(array, json_string(v.list.item[i]));
		return array;
	case EPF_CONF_CPUS:
		array = json_array();
		for (uint32_t i = 0; i < v.cpus.count; i++)
			json_array_append_new(array, json_integer(v.cpus.cpu[i]));
		return array;
	default:
		return json_integer((json_int_t)v.u);
	}
}

/* Values are UTF-8 by their parser; an origin may name a file whose name is not. */
static json_t *json_origin(const struct epf_conf *conf, enum epf_conf_id id)
{
	json_t *text = json_string(epf_conf_origin(conf, id));

	return text ? text : json_string("(a file whose name is not UTF-8)");
}

static json_t *json_row(const struct epf_conf *conf, enum epf_conf_id id, unsigned int flags)
{
	const struct epf_conf_key *key = epf_conf_key(id);
	const char *unit = unit_of(key->type);
	char *text = epf_conf_value(conf, id);
	char range[160], var[64];
	json_t *row;

	if (!text)
		return NULL;
	epf_conf_variable_name(key, var, sizeof(var));
	epf_conf_range(key, range, sizeof(range));
	row = json_pack("{s:s, s:o, s:s, s:o, s:b, s:s}", "name", key->name, "value",
			json_value(conf, key), "text", text, "origin", json_origin(conf, id),
			"is_default", conf->origin[id].source == EPF_CONF_DEFAULT, "variable", var);
	free(text);
	if (row && unit)
		json_object_set_new(row, "unit", json_string(unit));
	if (row && (flags & EPF_CONF_PRINT_DOCS)) {
		json_object_set_new(row, "default", json_string(key->def));
		json_object_set_new(row, "range", json_string(range));
		json_object_set_new(row, "aliases", json_string(key->aliases));
		json_object_set_new(row, "doc", json_string(key->doc));
		json_object_set_new(row, "group",
				    json_string(epf_conf_group_title(epf_conf_group_of(id))));
		json_object_set_new(row, "level",
				    json_string(key->level == EPF_CONF_BASIC ? "basic" : "expert"));
	}
	return row;
}

static int print_json(FILE *out, const struct epf_conf *conf, unsigned int flags)
{
	json_t *rows = json_array();
	json_t *top = json_pack("{s:s, s:o}", "schema", "epf.config/1", "settings", rows);
	int rc = top ? 0 : -ENOMEM;

	for (int i = 0; !rc && i < EPF_CONF_KEYS; i++) {
		if (!is_wanted(conf, (enum epf_conf_id)i, flags))
			continue;
		if (json_array_append_new(rows, json_row(conf, (enum epf_conf_id)i, flags)))
			rc = -ENOMEM;
	}
	if (!rc && json_dumpf(top, out, JSON_INDENT(2) | JSON_REAL_PRECISION(10)))
		rc = -EIO;
	if (!rc)
		fputc('\n', out);
	json_decref(top);
	return rc;
}

int epf_conf_print(FILE *out, const struct epf_conf *conf, unsigned int flags, bool json)
{
	int rc = json ? print_json(out, conf, flags) : print_text(out, conf, flags);

	if (!rc && (fflush(out) || ferror(out)))
		return -EIO;
	return rc;
}
