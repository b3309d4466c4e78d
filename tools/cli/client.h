/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subcommands that talk to a running daemon share (status, drain, link): the common options, which daemons are meant, one
 * request. Included by them only.
 */
#ifndef EPF_TOOLS_CLI_CLIENT_H
#define EPF_TOOLS_CLI_CLIENT_H

#include "fabric/base/conf_cli.h"
#include "fabric/protocol/channel.h"

#include <jansson.h>
#include <stdbool.h>

/* Keys of options that a subcommand lists itself begin here. */
enum { CLIENT_OPT = 0x10000 };

struct client_request {
	const char *what; /* argv[0]: "ep-fabric status" */
	struct epf_conf conf;
	bool json;
	bool one; /* an instance or socket was named */
	char dir[4096];
};

/**
 * client_read_request() - parse arguments; wrong usage ends the program.
 * @options: of the subcommand, without --json and settings; their keys are from CLIENT_OPT on.
 * @take: called with each of their keys and its argument; 0, or false when the argument is wrong.
 *
 * Return: 0, the caller destroys @req->conf; or -errno after a message.
 */
int client_read_request(struct client_request *req, const struct argp_option *options,
			const char *doc, bool (*take)(int key, const char *arg), int argc,
			char **argv);

/*
 * Names of the sockets in question, malloced and NULL-terminated: the one that was named, else all in the runtime directory in order
 * of their names. NULL after a message.
 */
char **client_sockets(const struct client_request *req);
void client_free_sockets(char **sockets);

/* "node0" of "/run/x/node0.sock", into buf. */
void client_instance(const char *socket, char *buf, size_t size);

/* Connects as operator: 0, or -errno with epf_last_error(). */
int client_open(const struct client_request *req, const char *socket, struct epf_svc_channel **out,
		struct epf_svc_hello_reply *hello);

/* One request over a separate connection, and its answer: 0, or -errno with epf_last_error(). */
int client_ask(const struct client_request *req, const char *socket, unsigned type, const void *msg,
	       void *reply);

/*
 * Calls @one for each socket in question, and prints what it appended to its list as {schema, instances} with --json (list is NULL without). No
 * socket at all is an error. Destroys req->conf. The exit status.
 */
int client_each(struct client_request *req,
		int (*one)(const struct client_request *req, const char *socket, json_t *list),
		const char *schema);

/* Prints the last error for a socket: 1, the exit status. */
int client_complain(const struct client_request *req, const char *socket);

/* Prints @top as JSON and frees it: the exit status. */
int client_print_json(const struct client_request *req, json_t *top);

#endif
