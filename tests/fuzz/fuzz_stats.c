/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: any bytes as a statistics file, read from memory of exactly their size and from a
 * file, with every value looked at; then changed under the open reader, as a hostile writer would,
 * and read again; at last as an instance in a graph of waits (tools/waits/waits.h), every entry as a sentence. The seeds are files of epf_stats_create() (without blocks, with all classes), one
 * of a newer writer and a tiny one.
 */
#include "queues/epf_stats_read.h"
#include "tools/waits/slow.h"
#include "tools/waits/waits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void look(struct epf_stats_reader *r)
{
	const struct epf_stats_class *cls;
	const struct epf_stats_entry *e;
	const struct epf_stats_row *row;
	struct epf_stats_value v;
	unsigned b, i;

	sink += strlen(epf_stats_reader_info(r)->instance) + strlen(epf_stats_reader_info(r)->job);
	sink += epf_stats_reader_alive(r, 100, 10) + epf_stats_reader_replaced(r);
	for (b = 0; b < 64 && (e = epf_stats_reader_block(r, b)); b++) {
		cls = epf_stats_reader_class(r, e->class_index);
		for (i = 0; i < cls->label_count; i++)
			sink += strlen(cls->label[i]) + strlen(e->label[i]);
		for (i = 0; (row = epf_stats_reader_row(r, e->class_index, i)); i++) {
			epf_stats_reader_value(r, b, i, &v);
			sink += strlen(row->name) + strlen(row->unit) + strlen(row->help) +
				strlen(v.state) + v.number;
			if (v.hist)
				sink += epf_hist_quantile(v.hist, 0.9) + epf_hist_max(v.hist);
		}
	}
	epf_stats_reader_value(r, b, 0, &v);
}

static void from_memory(const uint8_t *data, size_t size)
{
	struct epf_stats_reader *r;
	uint8_t *image;
	char why[128];
	size_t i;

	image = malloc(size ? size : 1);
	if (!image)
		return;
	memcpy(image, data, size);
	if (!epf_stats_reader_memory(image, size, &r, why, sizeof(why))) {
		look(r);
		/* Where and how much follows from the last bytes of the input. */
		for (i = 0; i < 8; i++)
			image[(data[size - 1] * 8191u + i * data[size - 2]) % size] ^=
				data[size - 3];
		epf_stats_reader_refresh(r, why, sizeof(why));
		look(r);
		epf_stats_reader_close(r);
	}
	free(image);
}

/* What it makes of what kernels count. */
static void causes(const struct waits *w)
{
	struct slow *s = slow_read(w);

	for (uint32_t j = 0; s && j < s->n_jobs; j++) {
		const struct epf_why_report *const *reports =
			(const struct epf_why_report *const *)s->job[j].reports;
		struct epf_why_cause c;
		char text[512];

		if (epf_why_explain(reports, s->job[j].n, &c, 1) && c.rank >= s->job[j].world)
			abort();
		sink += epf_why_text(reports, s->job[j].n, text, sizeof(text));
	}
	slow_free(s);
}

/* What `ep-fabric why` makes of it. Beside itself under another name: two instances of one job. */
static void graph(const char *path, const char *same)
{
	struct waits *w = waits_new();
	char text[256];

	if (!w || waits_add_file(w, path, true) || waits_add_file(w, same, false))
		abort();
	for (unsigned i = 0; i < 2; i++) {
		if (waits_refresh(w, UINT64_C(1) << (20 + 20 * i), 0))
			abort();
		for (uint32_t n = 0; n < w->n_entries; n++) {
			const struct waits_entry *e = &w->entry[w->order[n]];

			sink += strlen(waits_sentence(w, e, text, sizeof(text)));
			if (e->follows != WAITS_NONE && e->follows >= w->n_entries)
				abort();
		}
		causes(w);
	}
	waits_free(w);
}

static void from_file(const uint8_t *data, size_t size)
{
	struct epf_stats_reader *r;
	char path[64], same[64], why[128];
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	snprintf(same, sizeof(same), "/proc/thread-self/fd/%d", fd);
	graph(path, same);
	if (!epf_stats_reader_open(path, &r, why, sizeof(why))) {
		look(r);
		if (ftruncate(fd, (off_t)(size * data[size - 1] / 256)))
			abort();
		epf_stats_reader_refresh(r, why, sizeof(why));
		look(r);
		epf_stats_reader_close(r);
	}
	close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	from_memory(data, size);
	from_file(data, size);
	return 0;
}
