/* SPDX-License-Identifier: Apache-2.0 */
/* Additions of the copy driver: their kernel, and the sides of an adder (adder.h) in the usual context and in one of our own. Called by copy_driver.c and by an adder's threads. */
#include "fabric/base/err.h"
#include "fabric/gpu/copy_driver_priv.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

/*
 * epf_add(adds, n, number, claim, done): one thread makes the first n of 64 { u64 at, add } in the parameters, one after the other: atomic, with release, system
 * scope. If claim is not 0, only after it has raised the word there from less than number to number; if done is not 0, it writes number there afterwards. Any
 * driver since CUDA 11 translates it.
 */
/* clang-format off */
static const char add_ptx[] =
	".version 7.0\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .entry epf_add(.param .align 8 .b8 p_adds[1024], .param .u64 p_n, .param .u64 p_number, .param .u64 p_claim,\n"
	"	.param .u64 p_done)\n"
	"{\n"
	"	.reg .pred %over;\n"
	"	.reg .u64 %one, %end, %at, %add, %number, %claim, %done, %before;\n"
	"	ld.param.u64 %number, [p_number];\n"
	"	ld.param.u64 %claim, [p_claim];\n"
	"	setp.eq.u64 %over, %claim, 0;\n"
	"	@%over bra ADD;\n"
	"	cvta.to.global.u64 %claim, %claim;\n"
	"	atom.acq_rel.sys.global.max.u64 %before, [%claim], %number;\n"
	"	setp.ge.u64 %over, %before, %number;\n"
	"	@%over ret;\n"
	"ADD:\n"
	"	mov.b64 %one, p_adds;\n"
	"	ld.param.u64 %end, [p_n];\n"
	"	shl.b64 %end, %end, 4;\n"
	"	add.u64 %end, %end, %one;\n"
	"NEXT:\n"
	"	setp.ge.u64 %over, %one, %end;\n"
	"	@%over bra DONE;\n"
	"	ld.param.u64 %at, [%one];\n"
	"	ld.param.u64 %add, [%one+8];\n"
	"	cvta.to.global.u64 %at, %at;\n"
	"	red.release.sys.global.add.u64 [%at], %add;\n"
	"	add.u64 %one, %one, 16;\n"
	"	bra NEXT;\n"
	"DONE:\n"
	"	ld.param.u64 %done, [p_done];\n"
	"	setp.eq.u64 %over, %done, 0;\n"
	"	@%over ret;\n"
	"	cvta.to.global.u64 %done, %done;\n"
	"	st.release.sys.global.u64 [%done], %number;\n"
	"	ret;\n"
	"}\n";
/* clang-format on */

_Static_assert(sizeof(struct epf_copy_add) * EPF_COPY_ADDS == 1024, "as the kernel knows it");

int epf_copy_driver_add_load(struct epf_gpu_dev *dev, void **module, void **function)
{
	int rc = dev->ops->module_load(dev, add_ptx, module);

	return rc ? rc : dev->ops->function(dev, *module, "epf_add", function);
}

int epf_copy_driver_add_launch(struct epf_gpu_dev *dev, void *stream, void *function,
			       struct epf_adder_batch *b, uint64_t done)
{
	uint64_t n = b->n;
	void *args[5] = { b->adds, &n, &b->number, &b->claim, &done };
	struct epf_gpu_launch how = { .grid = 1, .block = 1, .args = args };

	return dev->ops->launch(dev, stream, function, &how);
}

struct epf_adder_side {
	struct epf_gpu_dev *dev;
	void *stream, *event; /* event: after the last launch */
	void *module, *function;
	uint64_t *
		done; /* a page, pinned in this side's context: the kernel writes the first word [release] */
	uint64_t done_dev;
	struct epf_gpu_mem claim; /* of the usual side */
	struct epf_adder_batch batch;
};

static void side_close(struct epf_adder_side *s)
{
	const struct epf_gpu_ops *ops;

	if (!s)
		return;
	ops = s->dev->ops;
	if (s->stream)
		(void)ops->stream_sync(s->dev, s->stream);
	ops->stream_destroy(s->dev, s->stream);
	ops->event_destroy(s->dev, s->event);
	if (s->module)
		ops->module_unload(s->dev, s->module);
	if (s->done_dev)
		ops->unpin(s->dev, s->done);
	if (s->done)
		munmap(s->done, PAGE);
	if (s->claim.addr)
		ops->mem_free(s->dev, &s->claim);
	free(s);
}

static int open_done(struct epf_adder_side *s)
{
	void *at = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		return epf_fail(EPF_R_NO_MEMORY, "GPU additions: a page");
	s->done = at;
	return s->dev->ops->pin(s->dev, at, PAGE, 0, &s->done_dev);
}

/* Launches a batch of no additions: the driver brings a kernel to the device with its first launch, and may wait for the program's kernels to do so. */
static int warm(struct epf_adder_side *s)
{
	int rc = epf_copy_driver_add_launch(s->dev, s->stream, s->function, &s->batch, s->done_dev);

	if (!rc)
		rc = s->dev->ops->event_record(s->dev, s->stream, s->event);
	return rc ? rc : s->dev->ops->stream_sync(s->dev, s->stream);
}

/* The word of claims is allocated in the usual context: the other one reaches what that allocates, as all memory of the program that has a descriptor. */
static int side_open(int device, bool is_own, struct epf_adder_side **out)
{
	struct epf_adder_side *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return epf_fail(EPF_R_NO_MEMORY, "GPU additions: no memory");
	rc = is_own ? epf_copy_driver_get_own(device, &s->dev)
		    : epf_copy_driver_get(device, &s->dev);
	if (rc) {
		free(s);
		return rc;
	}
	rc = s->dev->ops->stream_create(s->dev, &s->stream);
	if (!rc)
		rc = s->dev->ops->event_create(s->dev, &s->event);
	if (!rc)
		rc = open_done(s);
	if (!rc)
		rc = epf_copy_driver_add_load(s->dev, &s->module, &s->function);
	if (!rc && !is_own)
		rc = s->dev->ops->mem_alloc(s->dev, sizeof(uint64_t), EPF_GPU_MEM_EXPORT,
					    &s->claim);
	if (!rc)
		rc = warm(s);
	if (rc)
		side_close(s);
	else
		*out = s;
	return rc;
}

static uint64_t side_claim(const struct epf_adder_side *s)
{
	return s->claim.addr;
}

static int side_launch(struct epf_adder_side *s, const struct epf_adder_batch *b)
{
	int rc;

	s->batch.number = b->number;
	s->batch.claim = b->claim;
	s->batch.n = b->n;
	memcpy(s->batch.adds, b->adds, b->n * sizeof(*b->adds));
	rc = epf_copy_driver_add_launch(s->dev, s->stream, s->function, &s->batch, s->done_dev);
	return rc ? rc : s->dev->ops->event_record(s->dev, s->stream, s->event);
}

static uint64_t side_done(const struct epf_adder_side *s)
{
	return __atomic_load_n(s->done, __ATOMIC_ACQUIRE);
}

static int side_check(struct epf_adder_side *s)
{
	int rc = s->dev->ops->event_query(s->dev, s->event);

	return rc < 0 ? rc : 0;
}

const struct epf_adder_ops epf_copy_driver_adder = {
	.open = side_open,
	.close = side_close,
	.claim = side_claim,
	.launch = side_launch,
	.done = side_done,
	.check = side_check,
	.is_usual = epf_copy_driver_is_usual,
};
