/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service daemon as a library: one instance of a node, its control thread and its schedulers. Called by `ep-fabric run` and by tests. It
 * never waits for a client, never ends the process, and never lets one client's request harm another's job.
 *
 * Order: epf_svc_create() (everything that can be refused is refused here), epf_svc_run() on the thread that then is the control
 * thread, epf_svc_destroy(). epf_svc_stop() from anywhere.
 */
#ifndef EPF_FABRIC_SERVICE_SERVICE_H
#define EPF_FABRIC_SERVICE_SERVICE_H

#include <stdint.h>

struct epf_conf;
struct epf_svc;

/**
 * epf_svc_create() - take the instance's name, make its socket, start its schedulers.
 * @conf: loaded configuration; must outlive the daemon.
 * @version: of the release, for people.
 *
 * Takes the lock of the instance first: EPF_R_SVC_RUNNING names the process that holds it. A dead predecessor's socket and statistics file
 * are replaced. When it returns, clients may connect; they are answered once epf_svc_run() runs.
 */
int epf_svc_create(const struct epf_conf *conf, const char *version, struct epf_svc **out);

/**
 * epf_svc_run() - serve until stopped.
 * @drain_timeout_ns: how long jobs may go on after the first epf_svc_stop(); 0: as long as they want.
 *
 * Return: 0 when it was stopped and all jobs have ended or were ended; -errno when the socket cannot be served any more.
 */
int epf_svc_run(struct epf_svc *svc, uint64_t drain_timeout_ns);

/**
 * epf_svc_stop() - the first call refuses new jobs and ends the daemon after its last job; the second ends the jobs too.
 *
 * Any thread; async-signal-safe (signal-safety(7)).
 */
void epf_svc_stop(struct epf_svc *svc);

/* epf_svc_destroy() - end what is left, remove socket and lock and the statistics file; NULL is fine. */
void epf_svc_destroy(struct epf_svc *svc);

/* epf_svc_socket() - path of the control socket. */
const char *epf_svc_socket(const struct epf_svc *svc);

#endif
