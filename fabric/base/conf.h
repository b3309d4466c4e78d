/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: one typed struct made from the table conf_keys.h, filled from the command
 * line, the environment and files, each value with its origin. Used by the client library and all
 * tools. Nothing here is for hot code; a value that a hot loop needs is copied at set-up. No part
 * of it may print a secret.
 *
 * Usual order in a tool: epf_conf_init(), argp_parse() with epf_conf_argp (conf_cli.h) as a child,
 * epf_conf_load(), use, epf_conf_destroy(). The library does the same without argp. Who comes
 * first does not matter: a weaker source never replaces the value of a stronger one.
 */
#ifndef EPF_BASE_CONF_H
#define EPF_BASE_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Read when it exists, below the file that the user names. */
#define EPF_CONF_SYSTEM_FILE "/etc/ep-fabric.conf"

/* Limits of a configuration file: bytes of the whole, keys hold what their row says. */
#define EPF_CONF_FILE_MAX_BYTES 1048576

/* The words of each ENUM row. */
#define EPF_ENUM(set) \
 enum epf_conf_##set  \
 {
#define EPF_NAME(set, id, text) EPF_CONF_##set##_##id,
/* clang-format off */
#define EPF_ENUM_END(set)       };
/* clang-format on */
#include "fabric/base/conf_keys.h"

/* Items of a LIST; item[count] does not exist. */
struct epf_conf_list {
	char **item;
	uint32_t count;
};

/* CPU numbers of a CPUS row, ascending, each once. */
struct epf_conf_cpus {
	uint32_t *cpu;
	uint32_t count;
};

/* Where a value comes from; a larger number wins. */
enum epf_conf_source {
	EPF_CONF_DEFAULT,
	EPF_CONF_ALIAS,
	EPF_CONF_SYSTEM,
	EPF_CONF_FILE,
	EPF_CONF_ENVIRONMENT,
	EPF_CONF_PROGRAM, /* an option of the library's own interface */
	EPF_CONF_CLI,
};

/* A row's number: EPF_CONF_ID_<field>. EPF_CONF_FIRST_<GROUP> is the first row of a group. */
enum epf_conf_id {

#define G(id, title)                                               EPF_CONF_FIRST_##id, EPF_CONF_BEFORE_##id = EPF_CONF_FIRST_##id - 1,
#define K(field, option, type, def, min, max, level, aliases, doc) EPF_CONF_ID_##field,
#include "fabric/base/conf_keys.h"
	EPF_CONF_KEYS
};

/* A group's number, and its bit for choosing groups. */
enum epf_conf_group {

#define G(id, title) EPF_CONF_GROUP_##id,
#include "fabric/base/conf_keys.h"
	EPF_CONF_GROUPS
};

#define EPF_CONF_GROUP_BIT(id) (1u << EPF_CONF_GROUP_##id)
#define EPF_CONF_GROUPS_ALL    (~0u)

enum epf_conf_type {
	EPF_CONF_BOOL,
	EPF_CONF_UINT,
	EPF_CONF_POW2,
	EPF_CONF_AUTO,
	EPF_CONF_SIZE,
	EPF_CONF_TIME,
	EPF_CONF_PROB,
	EPF_CONF_ENUM,
	EPF_CONF_STRING,
	EPF_CONF_PATH,
	EPF_CONF_SECRET,
	EPF_CONF_LIST,
	EPF_CONF_CPUS,
};

enum epf_conf_level {
	EPF_CONF_BASIC,
	EPF_CONF_EXPERT,
};

/* A row as data. */
struct epf_conf_key {
	const char *name; /* "ring-slots" */
	const char *def;
	const char *aliases; /* names separated by spaces */
	const char *doc;
	const char *const *words; /* of an ENUM, ends with NULL; else NULL */
	uint64_t min;
	uint64_t max;
	size_t offset; /* of the field in struct epf_conf */
	enum epf_conf_type type;
	enum epf_conf_level level;
};

/* A variable that is read from the environment only. */
struct epf_conf_variable {
	const char *name;
	const char *doc;
};

#define EPF_CONF_C_BOOL      bool
#define EPF_CONF_C_UINT      uint64_t
#define EPF_CONF_C_POW2      uint64_t
#define EPF_CONF_C_AUTO      int64_t
#define EPF_CONF_C_SIZE      uint64_t
#define EPF_CONF_C_TIME      uint64_t
#define EPF_CONF_C_PROB      double
#define EPF_CONF_C_ENUM(set) enum epf_conf_##set
#define EPF_CONF_C_STRING    char *
#define EPF_CONF_C_PATH      char *
#define EPF_CONF_C_SECRET    char *
#define EPF_CONF_C_LIST      struct epf_conf_list
#define EPF_CONF_C_CPUS      struct epf_conf_cpus

struct epf_conf_origin {
	enum epf_conf_source source;
	char *where; /* "environment EPF_RANK"; NULL for a default */
};

/*
 * All values. Texts belong to the struct and are never NULL after epf_conf_init(); do not copy
 * the struct, do not write its fields: use epf_conf_set().
 */
struct epf_conf {
#define K(field, option, type, def, min, max, level, aliases, doc) EPF_CONF_C_##type field;
#include "fabric/base/conf_keys.h"
	char *config_file; /* --config, NULL when not given */
	struct epf_conf_origin origin[EPF_CONF_KEYS];
};

/**
 * epf_conf_init() - give every field its default.
 *
 * Return: 0; -ENOMEM, and conf need not be destroyed then.
 */
int epf_conf_init(struct epf_conf *conf);

/* epf_conf_destroy() - free what the values hold, wiping secrets. NULL is fine. */
void epf_conf_destroy(struct epf_conf *conf);

/* What epf_conf_load() reads, for those who want other places than the usual ones. */
struct epf_conf_places {
	const char *system_file;  /* NULL: none */
	const char *named_file;   /* NULL: conf->config_file, else EPF_CONFIG, else none */
	char *const *environment; /* as environ(7); NULL: none */
};

/**
 * epf_conf_load() - read the files and the environment into conf.
 * @places: NULL for the usual: EPF_CONF_SYSTEM_FILE, --config or EPF_CONFIG, the process's
 *          environment.
 *
 * Precedence: command line, program, environment, named file, system file, alias variables,
 * default. An unknown EPF_ variable is a logged warning that names the nearest known one; so is an
 * alias variable whose value we cannot take. An unknown name in a file, a value that is not of its
 * type or outside its range, and a named file that cannot be read are errors.
 *
 * Return: 0; or minus errno with epf_last_error() set, and conf must then only be destroyed: it
 * holds what was read before the error.
 */
int epf_conf_load(struct epf_conf *conf, const struct epf_conf_places *places);

/**
 * epf_conf_load_text() - read one configuration file that is already in memory.
 * @text: @len bytes of "name = value" lines. A line that starts with # or ; is a comment, and so
 *        is " ;" and what follows it behind a value. There are no sections; a line holds at most
 *        as many bytes as libinih takes (198 as packaged).
 * @source: EPF_CONF_SYSTEM or EPF_CONF_FILE.
 * @name: the file's name for origins and errors.
 */
int epf_conf_load_text(struct epf_conf *conf, const char *text, size_t len,
		       enum epf_conf_source source, const char *name);

/**
 * epf_conf_set() - set one value.
 * @name: option name, '-' and '_' alike: "ring-slots".
 * @value: text as in the table's type column.
 * @source: who sets it; a value of a stronger source stays, but @value is checked all the same.
 *          SECRET rows are refused from EPF_CONF_SYSTEM, EPF_CONF_FILE and EPF_CONF_CLI.
 *
 * Return: 0; -EINVAL or -ERANGE or -EPERM with epf_last_error() set, conf is unchanged then.
 */
int epf_conf_set(struct epf_conf *conf, const char *name, const char *value,
		 enum epf_conf_source source);
/* epf_conf_set_text() - the same of a program's setting, "name=value". */
int epf_conf_set_text(struct epf_conf *conf, const char *setting);

/* epf_conf_key() - a row of the table; NULL unless id is below EPF_CONF_KEYS. */
const struct epf_conf_key *epf_conf_key(enum epf_conf_id id);

/* epf_conf_group_of() - the group that a row stands in. */
enum epf_conf_group epf_conf_group_of(enum epf_conf_id id);

/* epf_conf_group_title() - the heading of a group; NULL unless it is below EPF_CONF_GROUPS. */
const char *epf_conf_group_title(enum epf_conf_group group);

/* epf_conf_variables() - variables that are not settings; the list ends with a NULL name. */
const struct epf_conf_variable *epf_conf_variables(void);

/* epf_conf_origin() - where a value comes from, in words: "default", "/etc/ep-fabric.conf:12". */
const char *epf_conf_origin(const struct epf_conf *conf, enum epf_conf_id id);

/**
 * epf_conf_value() - a value as text that epf_conf_set() would take.
 *
 * A secret is "(set)" or "". Return: to be freed by the caller; NULL when memory is short.
 */
char *epf_conf_value(const struct epf_conf *conf, enum epf_conf_id id);

/**
 * epf_conf_range() - what may be written for a row, for people: "64 .. 65536, a power of two".
 * @buf: @size bytes, 160 are enough.
 */
void epf_conf_range(const struct epf_conf_key *key, char *buf, size_t size);

/* epf_conf_variable_name() - "EPF_RING_SLOTS" for "ring-slots"; 64 bytes are enough. */
void epf_conf_variable_name(const struct epf_conf_key *key, char *buf, size_t size);

/**
 * epf_conf_stats_dir() - the directory that stats-dir or the environment means.
 *
 * Return: 0; -ERANGE with epf_last_error() set when it does not fit @size.
 */
int epf_conf_stats_dir(const struct epf_conf *conf, char *buf, size_t size);

/* Flags of epf_conf_print(). */
#define EPF_CONF_PRINT_DOCS    1u /* with range, variable and doc of each row */
#define EPF_CONF_PRINT_CHANGED 2u /* only values that are not a default */

/**
 * epf_conf_print() - print every value with its origin.
 * @flags: EPF_CONF_PRINT_*.
 * @json: one JSON object, "schema": "epf.config/1", in place of a table.
 *
 * Return: 0; -ENOMEM, or -EIO when @out could not be written.
 */
int epf_conf_print(FILE *out, const struct epf_conf *conf, unsigned int flags, bool json);

/* epf_conf_nic() - the kind of NIC by name; auto, which only a rank resolves (client/choose_nic.c), is the software NIC. */
const char *epf_conf_nic(const struct epf_conf *conf);

/* True for a NIC that copies GPU memory through the GPU's driver; auto may become one. The others access it directly, or not at all. */
static inline bool epf_conf_nic_copies(enum epf_conf_nic nic)
{
	return nic == EPF_CONF_NIC_EMU || nic == EPF_CONF_NIC_TCP || nic == EPF_CONF_NIC_AUTO;
}

#endif
