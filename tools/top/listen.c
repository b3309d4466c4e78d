/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep-top --listen: metrics over HTTP by libmicrohttpd, read again for each request. One thread serves, and it alone touches the source. It
 * answers GET /metrics and a line at /, and nothing else.
 */
#include "tools/top/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef EPF_WITH_MICROHTTPD

# include <arpa/inet.h>
# include <microhttpd.h>
# include <netdb.h>
# include <signal.h>
# include <sys/socket.h>

enum { CONNECTIONS = 32, TIMEOUT_S = 10, PORT_BYTES = 8, HOST_BYTES = 256 };

static struct MHD_Response *text_response(char *text, size_t bytes, const char *type)
{
	struct MHD_Response *r =
		MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE);

	if (!r)
		free(text);
	else
		MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	return r;
}

/* The metrics; NULL with a line on stderr. */
static struct MHD_Response *metrics(struct top_run *run)
{
	struct top_shot *shot = NULL;
	char reason[256], *text = NULL;
	size_t bytes = 0;
	FILE *out;
	int rc;

	if (top_source_next(run->source, &shot, reason, sizeof(reason))) {
		fprintf(stderr, "ep-top: %s\n", reason);
		return NULL;
	}
	out = open_memstream(&text, &bytes);
	rc = out ? top_prometheus(out, run->schema, shot, run->peer_labels) : -ENOMEM;
	if (out && fclose(out))
		rc = -ENOMEM;
	top_shot_free(shot);
	if (!rc)
		return text_response(text, bytes, "text/plain; version=0.0.4; charset=utf-8");
	free(text);
	fprintf(stderr, "ep-top: out of memory\n");
	return NULL;
}

static struct MHD_Response *line(const char *text)
{
	char *copy = strdup(text);

	return copy ? text_response(copy, strlen(copy), "text/plain; charset=utf-8") : NULL;
}

static enum MHD_Result serve(void *arg, struct MHD_Connection *connection, const char *url,
			     const char *method, const char *version, const char *upload,
			     size_t *upload_bytes, void **state)
{
	static int seen; /* its address alone */
	struct MHD_Response *response;
	unsigned status = MHD_HTTP_OK;
	enum MHD_Result rc;

	if (!*state) { /* the headers: answered with the second call */
		*state = &seen;
		return MHD_YES;
	}
	*upload_bytes = 0;
	if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
		status = MHD_HTTP_METHOD_NOT_ALLOWED;
		response = line("GET only\n");
	} else if (!strcmp(url, "/metrics")) {
		response = metrics(arg);
	} else if (!strcmp(url, "/")) {
		response = line("ep-top: metrics are at /metrics\n");
	} else {
		status = MHD_HTTP_NOT_FOUND;
		response = line("metrics are at /metrics\n");
	}
	if (!response) {
		status = MHD_HTTP_INTERNAL_SERVER_ERROR;
		response = line("reading failed: see the log of ep-top\n");
	}
	if (!response)
		return MHD_NO;
	rc = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return rc;
}

/* "127.0.0.1:9100", "[::1]:9100", ":9100" (loopback only). 0, or -1 with a line on stderr. */
static int resolve(const char *text, struct addrinfo **out)
{
	static const struct addrinfo hints = { .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
					       .ai_socktype = SOCK_STREAM };
	const char *colon = strrchr(text, ':'), *from = text;
	size_t n = colon ? (size_t)(colon - text) : 0;
	char host[HOST_BYTES];
	int rc;

	if (n > 1 && text[0] == '[' && text[n - 1] == ']') {
		from++;
		n -= 2;
	}
	if (!colon || !colon[1] || strlen(colon + 1) >= PORT_BYTES || n >= sizeof(host)) {
		fprintf(stderr,
			"ep-top: --listen is '%.64s', must be ADDR:PORT, as 127.0.0.1:9469\n",
			text);
		return -1;
	}
	snprintf(host, sizeof(host), "%.*s", (int)n, from);
	rc = getaddrinfo(*host ? host : "127.0.0.1", colon + 1, &hints, out);
	if (rc)
		fprintf(stderr, "ep-top: --listen %s: %s\n", text, gai_strerror(rc));
	return rc ? -1 : 0;
}

static struct MHD_Daemon *start(struct top_run *run, const struct addrinfo *at)
{
	unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO;

	if (at->ai_family == AF_INET6)
		flags |= MHD_USE_IPv6;
	return MHD_start_daemon(flags, 0, NULL, NULL, serve, run, MHD_OPTION_SOCK_ADDR, at->ai_addr,
				MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
				MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S, MHD_OPTION_END);
}

int top_run_listen(struct top_run *run)
{
	const union MHD_DaemonInfo *info;
	struct MHD_Daemon *daemon;
	struct addrinfo *at;
	sigset_t end;
	int signo;

	if (resolve(run->listen, &at))
		return EXIT_FAILURE;
	sigemptyset(&end);
	sigaddset(&end, SIGINT);
	sigaddset(&end, SIGTERM);
	sigprocmask(SIG_BLOCK, &end, NULL); /* before there is another thread */
	errno = 0;
	daemon = start(run, at);
	freeaddrinfo(at);
	if (!daemon) {
		fprintf(stderr, "ep-top: --listen %s: cannot serve: %s\n", run->listen,
			errno ? strerror(errno) : "see the address");
		return EXIT_FAILURE;
	}
	info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
	fprintf(stderr, "ep-top: serving /metrics on %.*s:%u\n",
		(int)(strrchr(run->listen, ':') - run->listen), run->listen,
		info ? info->port : 0u);
	sigwait(&end, &signo);
	MHD_stop_daemon(daemon);
	return EXIT_SUCCESS;
}

#else

int top_run_listen(struct top_run *run)
{
	fprintf(stderr,
		"ep-top: --listen %s: this program was built without libmicrohttpd: build it with "
		"libmicrohttpd-dev, or let a timer write the output of ep-top --prometheus to a file\n",
		run->listen);
	return EXIT_FAILURE;
}

#endif
