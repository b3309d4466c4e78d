/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening nvCOMP at run time (nvcomp.h): by its soname, so that a library that the process has loaded already is taken (Python's package
 * nvidia-libnvcomp), else the loader looks for it. It is never closed again.
 */
#include "fabric/gpu/nvcomp.h"

#include "fabric/base/err.h"
#include "fabric/gpu/library.h"

#include <pthread.h>
#include <stdio.h>

static const struct epf_gpu_symbol symbols[] = {

/* clang-format off */
#define S(symbol, field) { symbol, offsetof(struct epf_nvcomp, field) }
	/* clang-format on */
	S("nvcompGetProperties", properties),
	S("nvcompGetStatusString", status_text),
	S("nvcompBatchedANSCompressGetRequiredAlignments", compress_align),
	S("nvcompBatchedANSCompressGetTempSize", compress_temp),
	S("nvcompBatchedANSCompressGetMaxOutputChunkSize", compress_most),
	S("nvcompBatchedANSCompressAsync", compress),
	S("nvcompBatchedANSDecompressGetRequiredAlignments", expand_align),
	S("nvcompBatchedANSDecompressGetTempSize", expand_temp),
	S("nvcompBatchedANSDecompressAsync", expand),
#undef S
};

_Static_assert(sizeof(symbols) / sizeof(symbols[0]) == sizeof(struct epf_nvcomp) / sizeof(void *),
	       "every entry of the table has its symbol");
_Static_assert(sizeof(struct epf_nvcomp_compress) == 64 && sizeof(struct epf_nvcomp_expand) == 64,
	       "as the library knows them");

static struct epf_nvcomp table;
static struct epf_nvcomp_properties about;
static char why[256]; /* empty: the table is filled */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
	static const char *const names[] = { "libnvcomp.so.6", NULL };

	if (!epf_gpu_library(names, false, symbols, sizeof(symbols) / sizeof(symbols[0]), &table,
			     why, sizeof(why)))
		return;
	if (table.properties(&about) || about.version / 1000 != EPF_NVCOMP_MAJOR)
		snprintf(why, sizeof(why), "%s is of version %u.%u.%u: this program needs %d",
			 names[0], about.version / 1000, about.version % 1000 / 100,
			 about.version % 100, EPF_NVCOMP_MAJOR);
}

int epf_nvcomp(const struct epf_nvcomp **out, uint32_t *version)
{
	pthread_once(&once, load);
	if (why[0])
		return epf_fail(EPF_R_GPU_NVCOMP, "nvCOMP: %s", why);
	*out = &table;
	*version = about.version;
	return 0;
}
