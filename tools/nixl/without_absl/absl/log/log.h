/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes the place of Abseil's header when the plug-in is built with NIXL's source: NIXL's headers include it, the plug-in logs nothing through
 * it, and linking another Abseil than the agent's would only be a risk.
 */
#ifndef EPF_NIXL_WITHOUT_ABSL_H
#define EPF_NIXL_WITHOUT_ABSL_H

struct epf_no_log {
	template <class T> epf_no_log &operator<<(const T &)
	{
		return *this;
	}

	epf_no_log &WithPerror()
	{
		return *this;
	}
};

#define LOG(severity)     epf_no_log()
#define VLOG(level)       epf_no_log()
#define DVLOG(level)      epf_no_log()
#define CHECK(condition)  epf_no_log()
#define DCHECK(condition) epf_no_log()

#endif
