/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small false daemon for tests of libepf's service mode: a child process that speaks the control protocol, serves one job without an
 * engine, and does one thing wrong on request. Counters are its remote control: epf_counter(ep, "poke", &v) and so on.
 */
#ifndef EPF_TESTS_FAKE_SVC_H
#define EPF_TESTS_FAKE_SVC_H

#include <sys/types.h>

enum fake_fault {
	FAKE_NONE = 0,
	FAKE_EXIT,    /* ends without an answer */
	FAKE_CLOSE,   /* hangs up, but serves the next connection */
	FAKE_SILENT,  /* does not answer */
	FAKE_REFUSE,  /* says no: EPF_R_SVC_DRAINING */
	FAKE_AGAIN,   /* says no: EPF_R_REJOIN, -EAGAIN */
	FAKE_GARBAGE, /* bytes that are no frame */
	FAKE_SHORT,   /* the answer's body is one byte long */
	FAKE_NUMBERS, /* numbers in the answer that cannot be */
	FAKE_VERSION, /* of HELLO: another major version */
	FAKE_1_4,     /* of HELLO: a minor version without AWAKE */
	FAKE_NO_FD,
	FAKE_EXTRA_FD,
	FAKE_OTHER_FD, /* not a memfd */
	FAKE_SMALL_FD, /* a memfd of 16 bytes */
	FAKE_UNSEALED,
	FAKE_CONTENT, /* a wrong magic number in the memory it gives */
};

struct fake_plan {
	unsigned type; /* enum epf_svc_type: the request it goes wrong at */
	enum fake_fault fault;
	unsigned times; /* how often; 0: always */
	unsigned skip;  /* right answers before */
};

/* Starts one that listens at dir/name.sock and holds dir/name.lock as the real one does. plan NULL: does everything right. */
pid_t fake_svc_start(const char *dir, const char *name, const struct fake_plan *plan);
/* The same, but the child begins to listen only after delay_ms; returns at once. */
pid_t fake_svc_start_late(const char *dir, const char *name, unsigned delay_ms);
/* SIGKILL, and waits for its end. */
void fake_svc_kill(pid_t pid);

#endif
