/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small kernels of the emulated NIC as PTX text, which the driver translates for its device: no compiler is needed to build or to run
 * them. Included by copy_driver.c only; copy_driver_add.c has the kernel of additions. All of them end by themselves.
 *
 *   epf_copy_64(spans)    block b copies span b of 64 or 512 { u64 dst, src, bytes } in the parameters themselves (a kernel that read
 *   epf_copy_512(spans)   them from host memory would wait for it, one block after the other): 16 bytes a thread and turn where all three
 *                         are multiples of 16, else byte by byte. 512 spans are 12 KiB of parameters: drivers since CUDA 12.1
 */
#ifndef EPF_FABRIC_GPU_COPY_PTX_H
#define EPF_FABRIC_GPU_COPY_PTX_H

/* clang-format off */
#define EMU_GPU_COPY(name, bytes) \
	".visible .entry " name "(.param .align 8 .b8 p_spans[" bytes "])\n" \
	"{\n" \
	"	.reg .pred %done;\n" \
	"	.reg .u32 %i, %me, %threads, %a, %b, %c, %d;\n" \
	"	.reg .u64 %span, %off, %dst, %src, %bytes, %odd, %at, %step, %from, %to;\n" \
	"	mov.u32 %i, %ctaid.x;\n" \
	"	mov.u32 %me, %tid.x;\n" \
	"	mov.u32 %threads, %ntid.x;\n" \
	"	mov.b64 %span, p_spans;\n" \
	"	mul.wide.u32 %off, %i, 24;\n" \
	"	add.u64 %span, %span, %off;\n" \
	"	ld.param.u64 %dst, [%span];\n" \
	"	ld.param.u64 %src, [%span+8];\n" \
	"	ld.param.u64 %bytes, [%span+16];\n" \
	"	or.b64 %odd, %dst, %src;\n" \
	"	or.b64 %odd, %odd, %bytes;\n" \
	"	and.b64 %odd, %odd, 15;\n" \
	"	cvt.u64.u32 %at, %me;\n" \
	"	cvt.u64.u32 %step, %threads;\n" \
	"	setp.ne.u64 %done, %odd, 0;\n" \
	"	@%done bra BYTES;\n" \
	"	shl.b64 %at, %at, 4;\n" \
	"	shl.b64 %step, %step, 4;\n" \
	"VECTOR:\n" \
	"	setp.ge.u64 %done, %at, %bytes;\n" \
	"	@%done bra END;\n" \
	"	add.u64 %from, %src, %at;\n" \
	"	add.u64 %to, %dst, %at;\n" \
	"	ld.global.v4.u32 {%a, %b, %c, %d}, [%from];\n" \
	"	st.global.v4.u32 [%to], {%a, %b, %c, %d};\n" \
	"	add.u64 %at, %at, %step;\n" \
	"	bra VECTOR;\n" \
	"BYTES:\n" \
	"	setp.ge.u64 %done, %at, %bytes;\n" \
	"	@%done bra END;\n" \
	"	add.u64 %from, %src, %at;\n" \
	"	add.u64 %to, %dst, %at;\n" \
	"	ld.global.u8 %a, [%from];\n" \
	"	st.global.u8 [%to], %a;\n" \
	"	add.u64 %at, %at, %step;\n" \
	"	bra BYTES;\n" \
	"END:\n" \
	"	ret;\n" \
	"}\n"

static const char emu_gpu_copy_ptx[] =
	".version 8.1\n"
	".target sm_70\n"
	".address_size 64\n"
	EMU_GPU_COPY("epf_copy_64", "1536")
	EMU_GPU_COPY("epf_copy_512", "12288");
/* clang-format on */

#endif
