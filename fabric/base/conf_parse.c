/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the text of a configuration value as the type of its row, and checks its range. Called by
 * conf.c for every source of values, the defaults included, and fuzzed: the text may be anything.
 * It must never depend on the locale, and never put a secret into a message.
 */
#include "fabric/base/conf_priv.h"

#include "fabric/base/err.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DECIMALS_MAX 9

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit time_units[] = {
	{ "ns", 1 },         { "us", 1000 },         { "ms", 1000000 },
	{ "s", 1000000000 }, { "min", 60000000000 }, { "h", 3600000000000 },
	{ NULL, 0 },
};

/* Powers of 1024 only: "MB" means two things to two people and is refused with a hint. */
static const struct unit size_units[] = {
	{ "", 1 },
	{ "B", 1 },
	{ "k", 1ull << 10 },
	{ "K", 1ull << 10 },
	{ "KiB", 1ull << 10 },
	{ "m", 1ull << 20 },
	{ "M", 1ull << 20 },
	{ "MiB", 1ull << 20 },
	{ "g", 1ull << 30 },
	{ "G", 1ull << 30 },
	{ "GiB", 1ull << 30 },
	{ "t", 1ull << 40 },
	{ "T", 1ull << 40 },
	{ "TiB", 1ull << 40 },
	{ NULL, 0 },
};

/* What is being read: for the messages. */
struct subject {
	const struct epf_conf_key *key;
	const char *where;
	const char *text;
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* The text as it may be shown: short, and nothing of a secret. */
static const char *shown(const struct subject *s, char buf[72])
{
	if (s->key->type == EPF_CONF_SECRET)
		return "(hidden)";
	strncpy(buf, s->text, 64);
	strcpy(buf + 64, strlen(s->text) > 64 ? "..." : "");
	return buf;
}

static int bad(const struct subject *s, const char *what)
{
	char buf[72];

	return epf_fail(EPF_R_CONF_BAD_VALUE, "%s: %s = '%s' %s", s->where, s->key->name,
			shown(s, buf), what);
}

static int outside(const struct subject *s)
{
	char buf[72], range[160];

	epf_conf_range(s->key, range, sizeof(range));
	return epf_fail(EPF_R_CONF_RANGE, "%s: %s = '%s' is outside %s", s->where, s->key->name,
			shown(s, buf), range);
}

static int check_range(const struct subject *s, uint64_t n)
{
	return n < s->key->min || n > s->key->max ? outside(s) : 0;
}

/*
 * Reads digits in the given base from *p on and moves *p behind them.
 * Return: 0; -EINVAL when there is no digit, -ERANGE when they do not fit 64 bits.
 */
static int take_digits(const char **p, unsigned int base, uint64_t *out)
{
	static const char hex[] = "0123456789abcdef";
	const char *start = *p;
	uint64_t n = 0;
	bool over = false;

	for (;; (*p)++) {
		char c = **p;
		const char *d;

		if (c >= 'A' && c <= 'F')
			c = (char)(c - 'A' + 'a');
		d = c ? memchr(hex, c, base) : NULL;
		if (!d)
			break;
		over |= __builtin_mul_overflow(n, (uint64_t)base, &n);
		over |= __builtin_add_overflow(n, (uint64_t)(d - hex), &n);
	}
	if (*p == start)
		return -EINVAL;
	if (over)
		return -ERANGE;
	*out = n;
	return 0;
}

static int read_uint(const struct subject *s, uint64_t *out)
{
	const char *p = s->text;
	unsigned int base = 10;
	int rc;

	if (p[0] == '0' && (p[1] == 'x' || p[1] == 'X')) {
		base = 16;
		p += 2;
	}
	rc = take_digits(&p, base, out);
	if (rc == -EINVAL || *p)
		return bad(s, "is not a whole number");
	if (rc == -ERANGE)
		return outside(s);
	return check_range(s, *out);
}

static int read_pow2(const struct subject *s, uint64_t *out)
{
	int rc = read_uint(s, out);

	if (rc)
		return rc;
	if (*out & (*out - 1))
		return outside(s);
	return 0;
}

static int read_auto(const struct subject *s, int64_t *out)
{
	uint64_t n;
	int rc;

	if (!strcmp(s->text, "auto") || !strcmp(s->text, "-1")) {
		*out = -1;
		return 0;
	}
	if (!is_digit(s->text[0]))
		return bad(s, "is neither auto nor a whole number");
	rc = read_uint(s, &n);
	if (rc)
		return rc;
	*out = (int64_t)n;
	return 0;
}

static int read_bool(const struct subject *s, bool *out)
{
	static const char *const yes[] = { "yes", "true", "on", "1" };
	static const char *const no[] = { "no", "false", "off", "0" };

	for (size_t i = 0; i < 4; i++) {
		if (!strcmp(s->text, yes[i]) || !strcmp(s->text, no[i])) {
			*out = !strcmp(s->text, yes[i]);
			return 0;
		}
	}
	return bad(s, "is neither yes nor no");
}

/* A decimal without sign or exponent: whole + fraction / scale, scale a power of ten. */
struct decimal {
	uint64_t whole;
	uint64_t fraction;
	uint64_t scale;
};

/* Return: 0 and *p behind the number; -EINVAL, or -ERANGE past 64 bits or nine decimals. */
static int take_decimal(const char **p, struct decimal *d)
{
	const char *point;
	int rc = take_digits(p, 10, &d->whole);

	d->fraction = 0;
	d->scale = 1;
	if (rc || **p != '.')
		return rc;
	point = (*p)++;
	rc = take_digits(p, 10, &d->fraction);
	if (rc)
		return rc;
	if (*p - point - 1 > DECIMALS_MAX)
		return -ERANGE;
	for (ptrdiff_t i = 1; i < *p - point; i++)
		d->scale *= 10;
	return 0;
}

static const struct unit *find_unit(const struct unit *units, const char *name)
{
	for (; units->name; units++) {
		if (!strcmp(units->name, name))
			return units;
	}
	return NULL;
}

/* A decimal with a unit, whole when it is counted in the smallest one. */
static int read_quantity(const struct subject *s, const struct unit *units, const char *howto,
			 uint64_t *out)
{
	const char *p = s->text;
	const struct unit *unit;
	unsigned __int128 n, part;
	struct decimal d;
	int rc = take_decimal(&p, &d);

	if (rc == -EINVAL)
		return bad(s, howto);
	if (rc)
		return bad(s, "has more digits than can be kept");
	unit = find_unit(units, p);
	if (!unit && !*p && !d.whole && !d.fraction)
		unit = &units[0]; /* zero of anything */
	if (!unit)
		return bad(s, howto);
	part = (unsigned __int128)d.fraction * unit->factor;
	if (part % d.scale)
		return bad(s, unit->factor == 1 ? "is finer than its smallest unit"
						: "is not a whole number of its smallest unit");
	n = (unsigned __int128)d.whole * unit->factor + part / d.scale;
	if (n > UINT64_MAX)
		return outside(s);
	*out = (uint64_t)n;
	return check_range(s, *out);
}

static int read_prob(const struct subject *s, double *out)
{
	const char *p = s->text;
	struct decimal d;
	int rc = take_decimal(&p, &d);

	if (rc == -ERANGE)
		return bad(s, "has more than 9 decimals, or too many digits");
	if (rc || *p)
		return bad(s, "is not a decimal number such as 0.01");
	if (d.whole > 1 || (d.whole == 1 && d.fraction))
		return outside(s);
	*out = (double)d.whole + (double)d.fraction / (double)d.scale;
	return 0;
}

static int read_enum(const struct subject *s, unsigned int *out)
{
	char what[200] = "is none of";

	for (unsigned int i = 0; s->key->words[i]; i++) {
		if (!strcmp(s->key->words[i], s->text)) {
			*out = i;
			return 0;
		}
	}
	for (unsigned int i = 0; s->key->words[i]; i++) {
		size_t used = strlen(what);

		snprintf(what + used, sizeof(what) - used, "%s %s", i ? "," : "", s->key->words[i]);
	}
	return bad(s, what);
}

/* Bytes of the UTF-8 character at p, 0 when it is none (RFC 3629: no overlong, no surrogates). */
static size_t utf8_len(const unsigned char *p)
{
	if (p[0] < 0x80)
		return 1;
	if (p[0] >= 0xc2 && p[0] <= 0xdf)
		return (p[1] & 0xc0) == 0x80 ? 2 : 0;
	if ((p[0] & 0xf0) == 0xe0) {
		if ((p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80)
			return 0;
		if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f))
			return 0;
		return 3;
	}
	if (p[0] >= 0xf0 && p[0] <= 0xf4) {
		if ((p[1] & 0xc0) != 0x80 || (p[2] & 0xc0) != 0x80 || (p[3] & 0xc0) != 0x80)
			return 0;
		if ((p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
			return 0;
		return 4;
	}
	return 0;
}

/* Texts end up in logs, JSON and file names: UTF-8 without control characters is safe in all. */
static int check_text(const struct subject *s)
{
	const unsigned char *p = (const unsigned char *)s->text;

	while (*p) {
		size_t n = utf8_len(p);

		if (!n)
			return bad(s, "is not UTF-8 text");
		if (*p < 0x20 || *p == 0x7f)
			return bad(s, "holds a control character");
		p += n;
	}
	return 0;
}

static int read_text(const struct subject *s, char **out)
{
	size_t len = strlen(s->text);
	bool may_be_empty = !*s->key->def;
	int rc;

	if ((len || !may_be_empty) && (len < s->key->min || len > s->key->max))
		return outside(s);
	rc = s->key->type == EPF_CONF_SECRET ? 0 : check_text(s);
	if (rc)
		return rc;
	*out = strdup(s->text);
	return *out ? 0 : epf_fail(EPF_R_NO_MEMORY, "%s: %s", s->where, s->key->name);
}

/* One block holds the pointers and, behind them, the texts they point to. */
static int read_list(const struct subject *s, struct epf_conf_list *out)
{
	struct epf_conf_list list = { 0 };
	size_t len = strlen(s->text);
	char *texts;
	int rc;

	if (len)
		list.count = 1;
	for (const char *p = s->text; *p; p++)
		list.count += *p == ',';
	rc = check_text(s);
	if (!rc)
		rc = check_range(s, list.count);
	if (rc)
		return rc;
	list.item = malloc(list.count * sizeof(list.item[0]) + len + 1);
	if (!list.item)
		return epf_fail(EPF_R_NO_MEMORY, "%s: %s", s->where, s->key->name);
	texts = (char *)&list.item[list.count];
	memcpy(texts, s->text, len + 1);
	for (uint32_t i = 0; i < list.count; i++) {
		list.item[i] = texts;
		texts += strcspn(texts, ",");
		if (texts == list.item[i]) {
			free(list.item);
			return bad(s, "has an empty item");
		}
		*texts++ = '\0';
	}
	*out = list;
	return 0;
}

/* One item of a CPU list: "3" or "0-7". */
static int take_cpus(const struct subject *s, const char **p, uint64_t *first, uint64_t *last)
{
	static const char howto[] = "is not a list of CPU numbers such as 0,2-5";

	if (take_digits(p, 10, first))
		return bad(s, howto);
	*last = *first;
	if (**p == '-') {
		(*p)++;
		if (take_digits(p, 10, last) || *last < *first)
			return bad(s, howto);
	}
	if (**p && **p != ',')
		return bad(s, howto);
	if (**p == ',' && !*++*p)
		return bad(s, howto);
	return *first < s->key->min || *last > s->key->max ? outside(s) : 0;
}

static int read_cpus(const struct subject *s, struct epf_conf_cpus *out)
{
	size_t slots = (size_t)(s->key->max + 1);
	unsigned char *seen = calloc(slots, 1);
	struct epf_conf_cpus cpus = { 0 };
	const char *p = s->text;
	int rc = 0;

	if (!seen)
		return epf_fail(EPF_R_NO_MEMORY, "%s: %s", s->where, s->key->name);
	while (!rc && *p) {
		uint64_t first, last;

		rc = take_cpus(s, &p, &first, &last);
		for (uint64_t c = first; !rc && c <= last; c++) {
			cpus.count += !seen[c];
			seen[c] = 1;
		}
	}
	if (!rc && cpus.count) {
		cpus.cpu = malloc(cpus.count * sizeof(cpus.cpu[0]));
		if (!cpus.cpu)
			rc = epf_fail(EPF_R_NO_MEMORY, "%s: %s", s->where, s->key->name);
	}
	if (!rc) {
		for (uint32_t c = 0, n = 0; n < cpus.count; c++) {
			if (seen[c])
				cpus.cpu[n++] = c;
		}
		*out = cpus;
	}
	free(seen);
	return rc;
}

int epf_conf_parse(const struct epf_conf_key *key, const char *where, const char *text,
		   union epf_conf_value *value)
{
	struct subject s = { .key = key, .where = where, .text = text };

	switch (key->type) {
	case EPF_CONF_BOOL:
		return read_bool(&s, &value->b);
	case EPF_CONF_UINT:
		return read_uint(&s, &value->u);
	case EPF_CONF_POW2:
		return read_pow2(&s, &value->u);
	case EPF_CONF_AUTO:
		return read_auto(&s, &value->i);
	case EPF_CONF_SIZE:
		return read_quantity(&s, size_units,
				     "is not a size such as 4096, 64KiB or 2MiB (powers of 1024)",
				     &value->u);
	case EPF_CONF_TIME:
		return read_quantity(&s, time_units,
				     "is not a time with its unit, such as 100us, 1.5ms or 2s",
				     &value->u);
	case EPF_CONF_PROB:
		return read_prob(&s, &value->d);
	case EPF_CONF_ENUM:
		return read_enum(&s, &value->word);
	case EPF_CONF_STRING:
	case EPF_CONF_PATH:
	case EPF_CONF_SECRET:
		return read_text(&s, &value->text);
	case EPF_CONF_LIST:
		return read_list(&s, &value->list);
	case EPF_CONF_CPUS:
		return read_cpus(&s, &value->cpus);
	}
	return epf_fail(EPF_R_CONF_BAD_VALUE, "%s: %s has no type", where, key->name);
}

void epf_conf_release(const struct epf_conf_key *key, union epf_conf_value *value)
{
	switch (key->type) {
	case EPF_CONF_SECRET:
		if (value->text)
			explicit_bzero(value->text, strlen(value->text));
		free(value->text);
		break;
	case EPF_CONF_STRING:
	case EPF_CONF_PATH:
		free(value->text);
		break;
	case EPF_CONF_LIST:
		free(value->list.item);
		break;
	case EPF_CONF_CPUS:
		free(value->cpus.cpu);
		break;
	default:
		break;
	}
}
