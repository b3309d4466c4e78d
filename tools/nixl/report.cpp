/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent and its user are told of a failure (engine.h). */
#include "tools/nixl/engine.h"

#include <cerrno>
#include <cstdio>

/* NIXL's status for an errno of ours. */
static nixl_status_t status_of(int rc)
{
	switch (rc) {
	case 0:
		return NIXL_SUCCESS;
	case -ECONNRESET:
	case -ECONNREFUSED:
	case -EPIPE:
		return NIXL_ERR_REMOTE_DISCONNECT;
	case -ECANCELED:
		return NIXL_ERR_CANCELED;
	case -EBUSY:
		return NIXL_ERR_REPOST_ACTIVE;
	case -ENOENT:
		return NIXL_ERR_NOT_FOUND;
	case -EBADMSG:
		return NIXL_ERR_MISMATCH;
	case -EINVAL:
	case -ERANGE:
		return NIXL_ERR_INVALID_PARAM;
	case -EACCES:
	case -EPERM:
	case -EKEYREVOKED:
	case -EKEYEXPIRED:
		return NIXL_ERR_NOT_ALLOWED;
	default:
		return NIXL_ERR_BACKEND;
	}
}

void epf_nixl::say(const char *line)
{
	static std::mutex mutex;
	static std::string last;
	const std::lock_guard<std::mutex> lock(mutex);

	if (last == line)
		return;
	last = line;
	fprintf(stderr, "ep-fabric: NIXL: %s\n", line);
}

nixl_status_t epf_nixl::report(int rc)
{
	if (rc < 0)
		say(epf_last_error());
	return status_of(rc);
}

nixl_status_t epf_nixl::refuse(nixl_status_t status, const std::string &line)
{
	say(line.c_str());
	return status;
}
