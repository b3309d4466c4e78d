/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of `ep-fabric launch` share. The launcher (launch_run.c) runs an agent (launch_agent.c) on each host through a remote shell; the two talk in
 * frames over the agent's standard input and output (launch_wire.c). Included by them only.
 */
#ifndef EPF_TOOLS_CLI_LAUNCH_PRIV_H
#define EPF_TOOLS_CLI_LAUNCH_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	LAUNCH_HOSTS_MAX = 1024,
	LAUNCH_PORT =
		29555, /* of the rendezvous where no agent can be asked; that of bootstrap serve */
	LAUNCH_NAME_MAX = 63,       /* of a host's name: it becomes the setting node */
	LAUNCH_FRAME_MAX = 4 << 20, /* bytes of a frame */
	LAUNCH_TERM_MS = 3000,      /* between SIGTERM and SIGKILL of ranks */
};

/* What goes into a frame, by who sends it. */
enum launch_kind {
	/* the agent */
	LAUNCH_READY = 'R',  /* JSON: version, port */
	LAUNCH_OUT = 'O',    /* bytes that a rank wrote to stdout, */
	LAUNCH_ERR = 'E',    /* and to stderr */
	LAUNCH_ENDED = 'X',  /* a rank's status, as waitpid(2) gives it, in decimal */
	LAUNCH_FAILED = 'F', /* text: why the agent cannot go on */
	/* the launcher */
	LAUNCH_START = 'S', /* JSON: what to run */
	LAUNCH_STOP = 'K',  /* end all ranks */
};

/* First bytes of an agent's output: what comes before is the remote shell's (a profile that prints). */
#define LAUNCH_MAGIC       "\0ep-fabric launch 1\n"
#define LAUNCH_MAGIC_BYTES (sizeof(LAUNCH_MAGIC) - 1)

struct launch_frame {
	enum launch_kind kind;
	uint32_t rank;
	uint32_t len;
	const char *bytes; /* in the stream's buffer, until the next call */
};

/* The receiving end of a connection. */
struct launch_stream {
	char *buf;
	size_t have, at, room;
};

/*
 * launch_receive() - one read(2) of what has come. Returns the bytes, 0 at the end of the connection, or -errno (-EAGAIN: nothing now).
 * launch_next() - takes the next frame. Returns 1, 0 when more must come first, or -EPROTO.
 */
long launch_receive(struct launch_stream *s, int fd);
int launch_next(struct launch_stream *s, struct launch_frame *out);

/* launch_send() - writes a whole frame, and waits for room. Returns 0 or -errno. */
int launch_send(int fd, enum launch_kind kind, uint32_t rank, const void *bytes, size_t len);

/* What was asked for. Texts are the caller's. */
struct launch_request {
	const char *host[LAUNCH_HOSTS_MAX]; /* as given: [USER@]NAME */
	uint32_t hosts;
	uint32_t per_host;
	char **export_list; /* NAME or NAME=VALUE */
	uint32_t exports;
	char **program;         /* NULL-terminated */
	const char *rendezvous; /* "" : the first host, at a port that is free there */
	const char *rsh;        /* words of the remote shell, or "none" */
	const char *job;
	uint64_t timeout_ns; /* until all hosts have answered */
};

/* launch_name() - a host's name without its user. */
const char *launch_name(const char *host);

/* launch_is_here() - whether a host of the list is this one: by its name, or by an address of an interface. */
bool launch_is_here(const char *host);

/* launch_run() - the launcher: starts everything, and returns the exit status when everything has ended. */
int launch_run(const struct launch_request *req);

/* launch_agent() - the agent of a host: talks to the launcher over stdin and stdout. Returns the exit status. */
int launch_agent(void);

#endif
