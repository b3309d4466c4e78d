/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration table as data, and the struct's life: defaults, setting a value with its
 * origin, looking up names, freeing. Called by the loaders of conf_load.c and conf_cli.c, by the
 * library and by tools. It must never read a file or the environment on its own, except to find
 * the statistics directory.
 */
#include "fabric/base/conf_priv.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME_BYTES 64

#define EPF_ENUM(set)           static const char *const words_##set[] = {
#define EPF_NAME(set, id, text) text,
/* clang-format off */
#define EPF_ENUM_END(set)       NULL };
/* clang-format on */
#include "fabric/base/conf_keys.h"

#define T_BOOL      .type = EPF_CONF_BOOL
#define T_UINT      .type = EPF_CONF_UINT
#define T_POW2      .type = EPF_CONF_POW2
#define T_AUTO      .type = EPF_CONF_AUTO
#define T_SIZE      .type = EPF_CONF_SIZE
#define T_TIME      .type = EPF_CONF_TIME
#define T_PROB      .type = EPF_CONF_PROB
#define T_ENUM(set) .type = EPF_CONF_ENUM, .words = words_##set
#define T_STRING    .type = EPF_CONF_STRING
#define T_PATH      .type = EPF_CONF_PATH
#define T_SECRET    .type = EPF_CONF_SECRET
#define T_LIST      .type = EPF_CONF_LIST
#define T_CPUS      .type = EPF_CONF_CPUS

static const struct epf_conf_key keys[EPF_CONF_KEYS] = {
#define K(field, option, ftype, fdef, fmin, fmax, flevel, falias, fdoc) \
 [EPF_CONF_ID_##field] = { .name = (option),                            \
			   .def = (fdef),                               \
			   .aliases = (falias),                         \
			   .doc = (fdoc),                               \
			   .min = (fmin),                               \
			   .max = (fmax),                               \
			   .offset = offsetof(struct epf_conf, field),  \
			   .level = EPF_CONF_##flevel,                  \
			   T_##ftype },
#include "fabric/base/conf_keys.h"
};

#define K(field, option, ftype, fdef, fmin, fmax, flevel, falias, fdoc)                 \
 _Static_assert((fmin) <= (fmax) && (uint64_t)(fmax) <= INT64_MAX, "range of " option); \
 _Static_assert(sizeof(option) <= NAME_BYTES - 4, "name of " option " is too long");
#include "fabric/base/conf_keys.h"

static const char *const titles[EPF_CONF_GROUPS] = {
#define G(id, title) title,
#include "fabric/base/conf_keys.h"
};

static const struct epf_conf_variable variables[] = {
#define V(vname, vdoc) { .name = (vname), .doc = (vdoc) },
#include "fabric/base/conf_keys.h"
	{ NULL, NULL },
};

const struct epf_conf_key *epf_conf_key(enum epf_conf_id id)
{
	return (unsigned int)id < EPF_CONF_KEYS ? &keys[id] : NULL;
}

enum epf_conf_group epf_conf_group_of(enum epf_conf_id id)
{
	int begun = 0;

#define G(gid, title) begun += (int)id >= (int)EPF_CONF_FIRST_##gid;
#include "fabric/base/conf_keys.h"
	return (enum epf_conf_group)(begun - 1);
}

const char *epf_conf_group_title(enum epf_conf_group group)
{
	return (unsigned int)group < EPF_CONF_GROUPS ? titles[group] : NULL;
}

const struct epf_conf_variable *epf_conf_variables(void)
{
	return variables;
}

/* Fields have their own C types; the table's offset and type say where and which. */
void epf_conf_fetch(const struct epf_conf *conf, const struct epf_conf_key *key,
		    union epf_conf_value *value)
{
	const void *field = (const char *)conf + key->offset;

	memset(value, 0, sizeof(*value));
	switch (key->type) {
	case EPF_CONF_BOOL:
		memcpy(&value->b, field, sizeof(value->b));
		break;
	case EPF_CONF_ENUM:
		memcpy(&value->word, field, sizeof(value->word));
		break;
	case EPF_CONF_LIST:
		memcpy(&value->list, field, sizeof(value->list));
		break;
	case EPF_CONF_CPUS:
		memcpy(&value->cpus, field, sizeof(value->cpus));
		break;
	default: /* all others are eight bytes */
		memcpy(&value->u, field, sizeof(value->u));
		break;
	}
}

void epf_conf_store(struct epf_conf *conf, const struct epf_conf_key *key,
		    const union epf_conf_value *value)
{
	void *field = (char *)conf + key->offset;

	switch (key->type) {
	case EPF_CONF_BOOL:
		memcpy(field, &value->b, sizeof(value->b));
		break;
	case EPF_CONF_ENUM:
		memcpy(field, &value->word, sizeof(value->word));
		break;
	case EPF_CONF_LIST:
		memcpy(field, &value->list, sizeof(value->list));
		break;
	case EPF_CONF_CPUS:
		memcpy(field, &value->cpus, sizeof(value->cpus));
		break;
	default:
		memcpy(field, &value->u, sizeof(value->u));
		break;
	}
}

_Static_assert(sizeof(enum epf_conf_nic) == sizeof(unsigned int), "ENUM fields are moved as words");
_Static_assert(sizeof(char *) == sizeof(uint64_t), "texts are moved as eight bytes");
_Static_assert(sizeof(double) == sizeof(uint64_t), "PROB is moved as eight bytes");

int epf_conf_init(struct epf_conf *conf)
{
	memset(conf, 0, sizeof(*conf));
	for (unsigned int i = 0; i < EPF_CONF_KEYS; i++) {
		union epf_conf_value value;
		int rc = epf_conf_parse(&keys[i], "default", keys[i].def, &value);

		if (rc) {
			epf_conf_destroy(conf);
			return rc;
		}
		epf_conf_store(conf, &keys[i], &value);
	}
	return 0;
}

void epf_conf_destroy(struct epf_conf *conf)
{
	if (!conf)
		return;
	for (unsigned int i = 0; i < EPF_CONF_KEYS; i++) {
		union epf_conf_value value;

		epf_conf_fetch(conf, &keys[i], &value);
		epf_conf_release(&keys[i], &value);
		free(conf->origin[i].where);
	}
	free(conf->config_file);
	memset(conf, 0, sizeof(*conf));
}

int epf_conf_set_at(struct epf_conf *conf, enum epf_conf_id id, const char *text,
		    enum epf_conf_source source, const char *where)
{
	const struct epf_conf_key *key = &keys[id];
	union epf_conf_value value, old;
	char *where_copy;
	int rc;

	if (key->type == EPF_CONF_SECRET &&
	    (source == EPF_CONF_SYSTEM || source == EPF_CONF_FILE || source == EPF_CONF_CLI))
		return epf_fail(EPF_R_CONF_SECRET_PLACE,
				"%s: %s is taken from the environment only", where, key->name);
	rc = epf_conf_parse(key, where, text, &value);
	if (rc)
		return rc;
	if (source < conf->origin[id].source) {
		epf_conf_release(key, &value);
		return 0;
	}
	where_copy = strdup(where);
	if (!where_copy) {
		epf_conf_release(key, &value);
		return epf_fail(EPF_R_NO_MEMORY, "%s: %s", where, key->name);
	}
	epf_conf_fetch(conf, key, &old);
	epf_conf_release(key, &old);
	epf_conf_store(conf, key, &value);
	free(conf->origin[id].where);
	conf->origin[id].source = source;
	conf->origin[id].where = where_copy;
	return 0;
}

int epf_conf_set(struct epf_conf *conf, const char *name, const char *value,
		 enum epf_conf_source source)
{
	static const char *const words[] = {
		[EPF_CONF_DEFAULT] = "default", [EPF_CONF_ALIAS] = "alias variable",
		[EPF_CONF_SYSTEM] = "file",     [EPF_CONF_FILE] = "file",
		[EPF_CONF_PROGRAM] = "program", [EPF_CONF_CLI] = "command line",
		[EPF_CONF_ENVIRONMENT] = NULL,
	};
	char variable[NAME_BYTES], where[NAME_BYTES + 16], nearest[NAME_BYTES];
	int id = epf_conf_find(name);

	if ((unsigned int)source > EPF_CONF_CLI)
		return epf_fail(EPF_R_CONF_BAD_VALUE, "%s: source %d does not exist", name,
				(int)source);
	if (id < 0) {
		epf_conf_nearest(name, false, nearest, sizeof(nearest));
		return epf_fail(EPF_R_CONF_UNKNOWN_KEY,
				"'%.64s' is not a setting, the nearest is %s", name, nearest);
	}
	if (words[source])
		return epf_conf_set_at(conf, (enum epf_conf_id)id, value, source, words[source]);
	epf_conf_variable_name(&keys[id], variable, sizeof(variable));
	snprintf(where, sizeof(where), "environment %s", variable);
	return epf_conf_set_at(conf, (enum epf_conf_id)id, value, source, where);
}

int epf_conf_set_text(struct epf_conf *conf, const char *setting)
{
	const char *eq = strchr(setting, '=');
	char name[NAME_BYTES];

	if (!eq || (size_t)(eq - setting) >= sizeof(name))
		return epf_fail(EPF_R_CONF_UNKNOWN_KEY, "setting \"%s\" is not name=value",
				setting);
	memcpy(name, setting, (size_t)(eq - setting));
	name[eq - setting] = 0;
	return epf_conf_set(conf, name, eq + 1, EPF_CONF_PROGRAM);
}

const char *epf_conf_origin(const struct epf_conf *conf, enum epf_conf_id id)
{
	if ((unsigned int)id >= EPF_CONF_KEYS || !conf->origin[id].where)
		return "default";
	return conf->origin[id].where;
}

char *epf_conf_value(const struct epf_conf *conf, enum epf_conf_id id)
{
	union epf_conf_value value;

	if ((unsigned int)id >= EPF_CONF_KEYS)
		return NULL;
	epf_conf_fetch(conf, &keys[id], &value);
	return epf_conf_format(&keys[id], &value);
}

static char plain(char c)
{
	return c == '_' ? '-' : c;
}

/* Names of earlier releases, accepted until the next one. */
static const struct {
	const char *old, *name;
} renamed[] = {
	{ "park-limit", "defer-limit" },
};

/* True if they are the same setting name; '_' in @given counts as '-'. */
static bool same_name(const char *name, const char *given)
{
	while (*name && *name == plain(*given)) {
		name++;
		given++;
	}
	return !*name && !*given;
}

int epf_conf_find(const char *name)
{
	for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]); i++)
		if (same_name(renamed[i].old, name))
			name = renamed[i].name;
	for (int i = 0; i < EPF_CONF_KEYS; i++)
		if (same_name(keys[i].name, name))
			return i;
	return -1;
}

/* Levenshtein distance; names longer than NAME_BYTES - 1 count by their first part. */
static unsigned int distance(const char *a, const char *b)
{
	unsigned int row[NAME_BYTES];
	size_t n = strnlen(b, NAME_BYTES - 1);

	for (size_t j = 0; j <= n; j++)
		row[j] = (unsigned int)j;
	for (size_t i = 0; i < NAME_BYTES && a[i]; i++) {
		unsigned int diagonal = row[0];

		row[0] = (unsigned int)i + 1;
		for (size_t j = 1; j <= n; j++) {
			unsigned int best = diagonal + (plain(a[i]) != plain(b[j - 1]));

			diagonal = row[j];
			if (row[j] + 1 < best)
				best = row[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			row[j] = best;
		}
	}
	return row[n];
}

void epf_conf_nearest(const char *name, bool use_variables, char *buf, size_t size)
{
	unsigned int best = UINT32_MAX;

	for (unsigned int i = 0; i < EPF_CONF_KEYS; i++) {
		char variable[NAME_BYTES];
		const char *candidate = keys[i].name;
		unsigned int d;

		if (use_variables) {
			epf_conf_variable_name(&keys[i], variable, sizeof(variable));
			candidate = variable;
		}
		d = distance(name, candidate);
		if (d < best) {
			best = d;
			snprintf(buf, size, "%s", candidate);
		}
	}
	for (const struct epf_conf_variable *v = variables; use_variables && v->name; v++) {
		unsigned int d = distance(name, v->name);

		if (d < best) {
			best = d;
			snprintf(buf, size, "%s", v->name);
		}
	}
}

int epf_conf_stats_dir(const struct epf_conf *conf, char *buf, size_t size)
{
	const char *runtime = getenv("XDG_RUNTIME_DIR");
	int n;

	if (*conf->stats_dir)
		n = snprintf(buf, size, "%s", conf->stats_dir);
	else if (runtime && *runtime == '/')
		n = snprintf(buf, size, "%s/ep-fabric", runtime);
	else
		n = snprintf(buf, size, "/tmp/ep-fabric-%u", (unsigned int)getuid());
	if (n < 0 || (size_t)n >= size)
		return epf_fail(EPF_R_CONF_RANGE,
				"stats-dir: a path of %d bytes is outside 1 .. %zu", n, size - 1);
	return 0;
}

const char *epf_conf_nic(const struct epf_conf *conf)
{
	return epf_conf_key(EPF_CONF_ID_nic)
		->words[conf->nic == EPF_CONF_NIC_AUTO ? EPF_CONF_NIC_EMU : conf->nic];
}
