/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two small kernels of the emulated NIC as PTX text, which every NVIDIA driver since CUDA 11 translates for its device: no compiler is
 * needed to build or to run them. Included by emu_gpu_driver.c only. Both end by themselves.
 *
 *   epf_add(at, add)       one thread: atomic add with release, system scope
 *   epf_copy(spans, n)     block b copies spans b, b + blocks, ...: { u64 dst, src, bytes }; 16 bytes a thread and turn where all
 *                          three are multiples of 16, else byte by byte
 */
#ifndef EPF_FABRIC_EMU_GPU_PTX_H
#define EPF_FABRIC_EMU_GPU_PTX_H

/* clang-format off */
static const char emu_gpu_ptx[] =
	".version 7.0\n"
	".target sm_70\n"
	".address_size 64\n"
	".visible .entry epf_add(.param .u64 p_at, .param .u64 p_add)\n"
	"{\n"
	"	.reg .u64 %at, %add;\n"
	"	ld.param.u64 %at, [p_at];\n"
	"	ld.param.u64 %add, [p_add];\n"
	"	cvta.to.global.u64 %at, %at;\n"
	"	red.release.sys.global.add.u64 [%at], %add;\n"
	"	ret;\n"
	"}\n"
	".visible .entry epf_copy(.param .u64 p_spans, .param .u32 p_n)\n"
	"{\n"
	"	.reg .pred %done;\n"
	"	.reg .u32 %n, %i, %blocks, %me, %threads, %a, %b, %c, %d;\n"
	"	.reg .u64 %spans, %span, %dst, %src, %bytes, %odd, %at, %step, %from, %to;\n"
	"	ld.param.u64 %spans, [p_spans];\n"
	"	ld.param.u32 %n, [p_n];\n"
	"	cvta.to.global.u64 %spans, %spans;\n"
	"	mov.u32 %i, %ctaid.x;\n"
	"	mov.u32 %blocks, %nctaid.x;\n"
	"	mov.u32 %me, %tid.x;\n"
	"	mov.u32 %threads, %ntid.x;\n"
	"NEXT:\n"
	"	setp.ge.u32 %done, %i, %n;\n"
	"	@%done bra END;\n"
	"	mul.wide.u32 %span, %i, 24;\n"
	"	add.u64 %span, %spans, %span;\n"
	"	ld.volatile.global.u64 %dst, [%span];\n"
	"	ld.volatile.global.u64 %src, [%span+8];\n"
	"	ld.volatile.global.u64 %bytes, [%span+16];\n"
	"	add.u32 %i, %i, %blocks;\n"
	"	or.b64 %odd, %dst, %src;\n"
	"	or.b64 %odd, %odd, %bytes;\n"
	"	and.b64 %odd, %odd, 15;\n"
	"	cvt.u64.u32 %at, %me;\n"
	"	cvt.u64.u32 %step, %threads;\n"
	"	setp.ne.u64 %done, %odd, 0;\n"
	"	@%done bra BYTES;\n"
	"	shl.b64 %at, %at, 4;\n"
	"	shl.b64 %step, %step, 4;\n"
	"VECTOR:\n"
	"	setp.ge.u64 %done, %at, %bytes;\n"
	"	@%done bra NEXT;\n"
	"	add.u64 %from, %src, %at;\n"
	"	add.u64 %to, %dst, %at;\n"
	"	ld.global.v4.u32 {%a, %b, %c, %d}, [%from];\n"
	"	st.global.v4.u32 [%to], {%a, %b, %c, %d};\n"
	"	add.u64 %at, %at, %step;\n"
	"	bra VECTOR;\n"
	"BYTES:\n"
	"	setp.ge.u64 %done, %at, %bytes;\n"
	"	@%done bra NEXT;\n"
	"	add.u64 %from, %src, %at;\n"
	"	add.u64 %to, %dst, %at;\n"
	"	ld.global.u8 %a, [%from];\n"
	"	st.global.u8 [%to], %a;\n"
	"	add.u64 %at, %at, %step;\n"
	"	bra BYTES;\n"
	"END:\n"
	"	ret;\n"
	"}\n";
/* clang-format on */

#endif
