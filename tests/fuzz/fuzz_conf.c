/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer program for the configuration: arbitrary values for every type, arbitrary file text,
 * arbitrary environments. The first byte chooses what the rest is. Beside memory errors it looks
 * for a value that does not survive being printed and read again, and for a secret in a message.
 * Built with -Dfuzz=true; seeds in seeds/conf. It must never write to a file.
 */
#define EPF_LOG_COMP "fuzz"
#include "fabric/base/conf_priv.h"

#include "fabric/base/err.h"
#include "fabric/base/log.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TEXT_MAX 65536
#define VARS_MAX 64

/* A row of each type, so that the letter of a seed means the same when the table grows. */
static const char *const words[] = { "one", "two", NULL };
static const struct epf_conf_key rows[] = {
	{ .type = EPF_CONF_BOOL, .name = "A", .def = "no", .max = 1 },
	{ .type = EPF_CONF_UINT, .name = "B", .def = "0", .max = UINT64_MAX },
	{ .type = EPF_CONF_POW2, .name = "C", .def = "4", .min = 2, .max = 1024 },
	{ .type = EPF_CONF_AUTO, .name = "D", .def = "auto", .max = INT64_MAX },
	{ .type = EPF_CONF_SIZE, .name = "E", .def = "0", .max = UINT64_MAX },
	{ .type = EPF_CONF_TIME, .name = "F", .def = "0", .max = UINT64_MAX },
	{ .type = EPF_CONF_PROB, .name = "G", .def = "0", .max = 1 },
	{ .type = EPF_CONF_ENUM, .name = "H", .def = "one", .words = words },
	{ .type = EPF_CONF_STRING, .name = "I", .def = "", .min = 2, .max = 100 },
	{ .type = EPF_CONF_PATH, .name = "J", .def = "/", .min = 1, .max = 4095 },
	{ .type = EPF_CONF_SECRET, .name = "K", .def = "", .min = 16, .max = 64 },
	{ .type = EPF_CONF_LIST, .name = "L", .def = "", .max = 5 },
	{ .type = EPF_CONF_CPUS, .name = "M", .def = "", .min = 1, .max = 500 },
	{ .type = EPF_CONF_TIME, .name = "N", .def = "1s", .min = 1000, .max = 5000000000 },
	{ .type = EPF_CONF_SIZE, .name = "O", .def = "4k", .min = 256, .max = 1 << 20 },
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

static void require(bool fact)
{
	if (!fact)
		abort(); /* this is a test program: that is how libFuzzer learns of a finding */
}

/* A failed call must leave one line with a number, and no secret in it. */
static void check_message(const struct epf_conf_key *key, const char *text)
{
	const char *error = epf_last_error();

	require(strstr(error, "[EPF-") && !strchr(error, '\n'));
	if (key->type == EPF_CONF_SECRET && strlen(text) > 40)
		require(!strstr(error, text));
}

static void one_value(const struct epf_conf_key *key, const char *text)
{
	union epf_conf_value value, second;
	char *printed, *again;

	if (epf_conf_parse(key, "fuzz", text, &value)) {
		check_message(key, text);
		return;
	}
	printed = epf_conf_format(key, &value);
	require(printed != NULL);
	if (key->type != EPF_CONF_SECRET) {
		require(epf_conf_parse(key, "fuzz", printed, &second) == 0);
		again = epf_conf_format(key, &second);
		require(again && !strcmp(printed, again));
		free(again);
		epf_conf_release(key, &second);
	}
	free(printed);
	epf_conf_release(key, &value);
}

/* Every value of a loaded configuration must be one that could be written. */
static void check_conf(const struct epf_conf *conf)
{
	for (int i = 0; i < EPF_CONF_KEYS; i++) {
		char *text = epf_conf_value(conf, (enum epf_conf_id)i);

		require(text != NULL && epf_conf_origin(conf, (enum epf_conf_id)i) != NULL);
		if (epf_conf_key((enum epf_conf_id)i)->type != EPF_CONF_SECRET)
			one_value(epf_conf_key((enum epf_conf_id)i), text);
		free(text);
	}
}

/* The text as a file that has a name, without touching a disk. */
static void as_file(struct epf_conf *conf, const char *text, size_t len)
{
	struct epf_conf_places places = { 0 };
	char path[64];
	int fd = memfd_create("conf", MFD_CLOEXEC);

	require(fd >= 0 && write(fd, text, len) == (ssize_t)len);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	places.named_file = path;
	if (len & 1) {
		places.named_file = "/nonexistent";
		places.system_file = path;
	}
	require(epf_conf_load(conf, &places) == 0 || *epf_last_error());
	places.system_file = "/dev/null/nothing";
	require(epf_conf_load(conf, &places) < 0);
	close(fd);
}

/* Zero bytes separate the variables. */
static void as_environment(struct epf_conf *conf, char *text, size_t len)
{
	char *vars[VARS_MAX + 1] = { NULL };
	struct epf_conf_places places = { .environment = vars };
	size_t n = 0;

	for (char *p = text; p < text + len && n < VARS_MAX; p += strlen(p) + 1)
		vars[n++] = p;
	require(epf_conf_load(conf, &places) == 0 || *epf_last_error());
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	return epf_log_configure("error");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct epf_conf conf;
	unsigned int which;
	char *text;

	if (size < 2 || size > TEXT_MAX)
		return 0;
	text = malloc(size);
	require(text && epf_conf_init(&conf) == 0);
	epf_clear_error();
	memcpy(text, data + 1, size - 1);
	text[size - 1] = '\0';
	which = data[0];
	if (which == 'f') {
		if (epf_conf_load_text(&conf, text, size - 1, EPF_CONF_FILE, "fuzz.conf"))
			check_message(epf_conf_key(EPF_CONF_ID_job), text);
		check_conf(&conf);
	} else if (which == 'p') {
		as_file(&conf, text, size - 1);
		check_conf(&conf);
	} else if (which == 'e') {
		as_environment(&conf, text, size - 1);
		check_conf(&conf);
	} else {
		one_value(&rows[(which - 'A') % ROWS], text);
	}
	epf_conf_destroy(&conf);
	free(text);
	return 0;
}
