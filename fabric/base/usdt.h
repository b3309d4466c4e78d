/* SPDX-License-Identifier: Apache-2.0 */
/*
 * USDT probes: places of the engine that bpftrace and perf can listen at, in a running process, by name (provider `epf`). docs/guides/tracing.md says what
 * each reports; tests/docs/probes.py holds that page and the scripts against what is in the programs. Used by the engine, hot files too: a probe at which nobody
 * listens is one nop, and a note for the listener of where its arguments lie. So an argument must be at hand, in a register
 * or a word of memory: never a call, nor a value that is made for the probe alone.
 *
 * Without systemtap's sys/sdt.h (or with -Dusdt=disabled) there are none.
 */
#ifndef EPF_BASE_USDT_H
#define EPF_BASE_USDT_H

#ifdef EPF_WITH_SDT
# include <sys/sdt.h>
# define EPF_PROBE2(name, a, b)       DTRACE_PROBE2(epf, name, a, b)
# define EPF_PROBE3(name, a, b, c)    DTRACE_PROBE3(epf, name, a, b, c)
# define EPF_PROBE4(name, a, b, c, d) DTRACE_PROBE4(epf, name, a, b, c, d)
#else
# define EPF_PROBE2(name, a, b)       ((void)(a), (void)(b))
# define EPF_PROBE3(name, a, b, c)    ((void)(a), (void)(b), (void)(c))
# define EPF_PROBE4(name, a, b, c, d) ((void)(a), (void)(b), (void)(c), (void)(d))
#endif

#endif
