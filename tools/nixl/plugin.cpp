/* SPDX-License-Identifier: Apache-2.0 */
/* What NIXL looks for in libplugin_EPF.so: its table, given to the versions that it was tried with, and to no other. */
#include "tools/nixl/engine.h"

#include <link.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

using namespace epf_nixl;

namespace
{

/* Finds NIXL's library among those that are loaded. */
int find_nixl(dl_phdr_info *info, size_t, void *out)
{
	const std::filesystem::path path(info->dlpi_name);

	if (path.filename() != "libnixl.so")
		return 0;
	*static_cast<std::filesystem::path *>(out) = path;
	return 1;
}

/* Returns the version of the wheel that NIXL's library comes from: SITE/.NAME.mesonpy.libs/libnixl.so. Empty if it is from none. */
std::string wheel_version()
{
	const std::string tail = ".mesonpy.libs", info = ".dist-info";
	std::filesystem::path path;
	std::error_code error;

	dl_iterate_phdr(find_nixl, &path);
	const auto folder = path.parent_path();
	std::string name = folder.filename();

	if (name.size() <= tail.size() + 1 || !name.ends_with(tail))
		return "";
	name = name.substr(1, name.size() - 1 - tail.size()) + "-";
	for (const auto &entry : std::filesystem::directory_iterator(folder.parent_path(), error)) {
		const std::string dir = entry.path().filename();

		if (dir.starts_with(name) && dir.ends_with(info))
			return dir.substr(name.size(), dir.size() - name.size() - info.size());
	}
	return "";
}

/* The interface has one version number for releases that differ: true if the one that runs is one this was tried with. */
bool is_known(const std::string &version)
{
	unsigned major = 0, minor = 0;

	if (sscanf(version.c_str(), "%u.%u", &major, &minor) != 2)
		return true; /* not from a wheel: the agent compares the interface's version, and nothing more can be known */
#ifdef EPF_NIXL_SOURCE
	unsigned built_major = 0, built_minor = 0;

	sscanf(EPF_NIXL_SOURCE, "%u.%u", &built_major, &built_minor);
	return major == built_major && minor == built_minor;
#else
	return major == 1 && minor >= 3 && minor <= 5;
#endif
}

nixlBackendEngine *create_engine(const nixlBackendInitParams *params)
{
	return new epfNixlEngine(params);
}

void destroy_engine(nixlBackendEngine *engine)
{
	delete engine;
}

const char *plugin_name()
{
	return "EPF";
}

/* No list: every setting is one (docs/config.md). */
nixl_b_params_t backend_options()
{
	return {};
}

nixl_mem_list_t backend_mems()
{
	return { DRAM_SEG, VRAM_SEG };
}

} /* namespace */

extern "C" __attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init()
{
	static nixlBackendPlugin plugin = {
		NIXL_PLUGIN_API_VERSION, create_engine, destroy_engine, plugin_name, epf_version,
		backend_options,         backend_mems
	};
	const std::string version = wheel_version();

	if (is_known(version))
		return &plugin;
#ifdef EPF_NIXL_SOURCE
	say(("version " + version +
	     " runs, and libplugin_EPF.so was built for " EPF_NIXL_SOURCE
	     ": build it with the source of " +
	     version + " (meson option nixl_source)")
		    .c_str());
#else
	say(("version " + version +
	     " is none that libplugin_EPF.so was tried with (1.3 to 1.5): install one of these, or "
	     "build the plug-in with the source of " +
	     version + " (meson option nixl_source)")
		    .c_str());
#endif
	return nullptr;
}

extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini()
{
}
